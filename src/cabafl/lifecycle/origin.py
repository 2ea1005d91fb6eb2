"""Where a run comes from: what another process needs, perhaps in another folder, to go on with it."""

import json
import sys
from pathlib import Path
from typing import Any

from cabafl.config import Experiment
from cabafl.data.dataset import Dataset
from cabafl.data.fingerprint import fingerprint
from cabafl.errors import UserError
from cabafl.recording.folder import ENVIRONMENT

DATA, FOLDER = "data", "folder"  # keys of environment.json


def with_absolute_paths(experiment: Experiment) -> Experiment:
    """The experiment with files and folders that do not depend on the working folder."""
    data, fleet, model = experiment.data, experiment.fleet, experiment.model
    if data.root is not None:
        data = data.model_copy(update={"root": _absolute(data.root)})
    if fleet.faults.trace is not None:
        faults = fleet.faults.model_copy(update={"trace": _absolute(fleet.faults.trace)})
        fleet = fleet.model_copy(update={"faults": faults})
    if model.weights is not None:
        model = model.model_copy(update={"weights": _absolute(model.weights)})
    return experiment.model_copy(update={"data": data, "fleet": fleet, "model": model})


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def origin(dataset: Dataset) -> dict[str, Any]:
    """What ``environment.json`` keeps: a checksum of the samples, and the working folder, for modules of the user's."""
    return {DATA: fingerprint(dataset), FOLDER: str(Path.cwd())}


def find_modules(path: Path) -> None:
    """Makes modules of the folder in which the run was started importable, last of all."""
    folder = _stored(path).get(FOLDER)
    if isinstance(folder, str) and folder not in sys.path:
        sys.path.append(folder)


def check_data(path: Path, experiment: Experiment, dataset: Dataset) -> None:
    """Raises `UserError` if the samples are not those that the run began with."""
    before = _stored(path).get(DATA)
    if before is not None and before != fingerprint(dataset):
        raise UserError(
            f"data.dataset = {experiment.data.dataset!r}: the samples are not those that the run in {path} began with; "
            "accepted: the same data"
        )


def _stored(path: Path) -> dict[str, Any]:
    try:
        found = json.loads((path / ENVIRONMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
