"""Where a run comes from: what another process needs, perhaps in another folder, to go on with it."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from cabafl.config import Experiment
from cabafl.data.dataset import Dataset
from cabafl.data.fingerprint import fingerprint
from cabafl.errors import UserError
from cabafl.names import HUB
from cabafl.recording.folder import CHECKPOINT, ENVIRONMENT

DATA, FOLDER, FILES = "data", "folder", "files"  # keys of environment.json
PLACES = ("data.root", "model.weights", "fleet.faults.trace")  # settings that say where a file is, which may be moved


def with_absolute_paths(experiment: Experiment) -> Experiment:
    """The experiment with files and folders that do not depend on the working folder."""
    data, fleet, model = experiment.data, experiment.fleet, experiment.model
    folder = Path(data.dataset.removeprefix(HUB)).expanduser() if data.dataset.startswith(HUB) else None
    if data.root is not None:
        data = data.model_copy(update={"root": _absolute(data.root)})
    elif folder is not None and folder.is_dir():  # hf:./folder
        data = data.model_copy(update={"root": _absolute(str(folder))})
    if fleet.faults.trace is not None:
        faults = fleet.faults.model_copy(update={"trace": _absolute(fleet.faults.trace)})
        fleet = fleet.model_copy(update={"faults": faults})
    if model.weights is not None:
        model = model.model_copy(update={"weights": _absolute(model.weights)})
    return experiment.model_copy(update={"data": data, "fleet": fleet, "model": model})


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def origin(experiment: Experiment, dataset: Dataset) -> dict[str, Any]:
    """What ``environment.json`` keeps: checksums of the samples and of other files that the run depends on, and the
    working folder, for modules of the user's."""
    return {DATA: fingerprint(dataset), FOLDER: str(Path.cwd()), FILES: _checksums(experiment)}


def _checksums(experiment: Experiment) -> dict[str, str]:
    """Setting -> checksum of the file that it names; raises `UserError` if one cannot be read."""
    named = {"model.weights": experiment.model.weights, "fleet.faults.trace": experiment.fleet.faults.trace}
    found = {}
    for key, path in named.items():
        if path is None:
            continue
        try:
            with Path(path).expanduser().open("rb") as file:
                found[key] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UserError(f"{key} = {path!r}: cannot be read: {error.strerror}") from None
    return found


def find_modules(path: Path) -> None:
    """Makes modules of the folder in which the run was started importable, last of all."""
    folder = _stored(path).get(FOLDER)
    if isinstance(folder, str) and folder not in sys.path:
        sys.path.append(folder)


def check_environment(path: Path) -> None:
    """Raises `UserError` if what the run began with is not known any more."""
    try:
        found = json.loads((path / ENVIRONMENT).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path / ENVIRONMENT}: cannot be read: {error.strerror}; {_ACCEPTED}") from None
    except ValueError as error:
        raise UserError(f"{path / ENVIRONMENT}: cannot be read: {error}; {_ACCEPTED}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path / ENVIRONMENT}: is not a table; {_ACCEPTED}")


_ACCEPTED = "accepted: the file that the run wrote, which tells which data it began with"


def without_start(experiment: Experiment, path: Path) -> Experiment:
    """The experiment without the weights to start from, if the run has a checkpoint: it needs them no longer."""
    return without_weights(experiment) if (path / CHECKPOINT).exists() else experiment


def without_weights(experiment: Experiment) -> Experiment:
    """The experiment without the weights to start from."""
    return experiment.model_copy(update={"model": experiment.model.model_copy(update={"weights": None})})


def check_origin(path: Path, experiment: Experiment, dataset: Dataset) -> None:
    """Raises `UserError` if the samples, or other files, are not those that the run began with."""
    before = _stored(path)
    if before.get(DATA) not in (None, fingerprint(dataset)):
        raise UserError(
            f"data.dataset = {experiment.data.dataset!r}: the samples are not those that the run in {path} began with; "
            "accepted: the same data"
        )
    files = before.get(FILES)
    for key, checksum in _checksums(experiment).items():
        if isinstance(files, dict) and files.get(key) not in (None, checksum):
            raise UserError(f"{key}: not the file that the run in {path} began with; accepted: the same content")


def _stored(path: Path) -> dict[str, Any]:
    try:
        found = json.loads((path / ENVIRONMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
