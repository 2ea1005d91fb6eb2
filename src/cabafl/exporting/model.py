"""Exports the model of a run: `cabafl export`."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cabafl.config import Experiment, load_experiment
from cabafl.data.dataset import Dataset
from cabafl.errors import UserError
from cabafl.exporting.card import CardFacts, clock_of, model_card, stage
from cabafl.exporting.check import compare_outputs
from cabafl.exporting.formats import SUFFIXES, Format, check_format, in_one_line, read_model, write_model
from cabafl.files import sync_folder, write_atomic
from cabafl.lifecycle.loading import LoadedModel, Which, load_model, model_with
from cabafl.lifecycle.origin import check_origin, find_modules
from cabafl.lifecycle.simulate import one_thread
from cabafl.recording.folder import EXPERIMENT
from cabafl.samples import evaluated_data, with_given

FOLDER = "export"  # in the run folder: where files go by default
EXAMPLES = 2  # samples with which a network is traced; one could be taken for a fixed batch


@dataclass(frozen=True)
class Exported:
    """A model that was written for other programs."""

    file: Path
    """The model."""

    card: Path
    """The model card, Markdown, beside it."""

    what: str
    """Which model of the run it is."""

    checked: str
    """What was compared, and how large the differences are."""

    figures: dict[str, float]
    """Metrics and loss of the model on the test samples."""


def export_model(
    path: str | Path, out: str | Path | None = None, format: Format = "onnx", which: Which = "result", data: Any = None
) -> Exported:
    """Writes the model of a run for other programs, with its preprocessing, and a model card beside it.

    The file is read back and compared with the torch model on all test samples of the run; if it predicts anything
    else, nothing is written.

    Args:
        path: The run folder. If the run is not finished, its last checkpoint counts.
        out: The file to write, which must not exist; the card gets its name and ``.md``. None: ``export/model.onnx`` in
            the run folder, or the suffix of the format.
        format: ``onnx``, ``torchscript`` or ``safetensors``. The first two compute outputs from samples as they are in
            the data set, for any number of samples; the last has the weights, and the task's description in its header.
        which: See `load_model`.
        data: The samples, if they were handed in to `simulate`.

    Raises:
        UserError: If there is no such model, the data are not there to check it, or the network cannot be expressed in
            the format.
    """
    path = Path(path)
    check_format(format)
    file = target(path, out, format)
    if not (path / EXPERIMENT).exists():
        raise UserError(f"{path}: not a run folder (it has no {EXPERIMENT})")
    find_modules(path)
    return export_loaded(load_model(path, which), path, file, format, data)


def export_weights(weights: Path, path: Path, out: Path, format: Format) -> Exported:
    """As `export_model`, with other weights of the same run, in safetensors format."""
    check_format(format)
    file = target(path, out, format)
    find_modules(path)
    return export_loaded(model_with(weights, path), path, file, format)


def target(path: Path, out: str | Path | None, format: Format) -> Path:
    """The file to write; raises `UserError` if it exists or cannot be made."""
    file = path / FOLDER / f"model{SUFFIXES[format]}" if out is None else Path(out)
    for each in (file, _card(file)):
        if each.exists():
            raise UserError(f"--out = {each}: exists; accepted: a new file")
    if out is not None and not file.absolute().parent.is_dir():
        raise UserError(f"--out = {file}: its folder does not exist")
    return file


def export_loaded(model: LoadedModel, path: Path, file: Path, format: Format, data: Any = None) -> Exported:
    """As `export_model`, with a model that is loaded already."""
    experiment, dataset = _samples(path, data)
    made = not file.parent.exists()
    temporary = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(exist_ok=True)
        with one_thread():
            index = torch.arange(EXAMPLES) % len(dataset.test)
            write_model(model, format, dataset.test.x[index], temporary)
            with in_one_line(format, model):
                exported = read_model(format, temporary, model.spec)
                line, figures = compare_outputs(model, exported, dataset.test, format)
        card = model_card(path, file, format, model, CardFacts(experiment, dataset, figures, line))
        write_atomic(_card(file), card.encode())
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(file)
        sync_folder(file.parent)
    except OSError as error:
        raise UserError(f"--out = {file}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
            if made and not file.exists():
                file.parent.rmdir()
    return Exported(file, _card(file), stage(path, model), line, figures)


def _samples(path: Path, data: Any) -> tuple[Experiment, Dataset]:
    """The experiment and the samples that its runs are evaluated on."""
    experiment, given = with_given(load_experiment(path / EXPERIMENT), data)
    dataset = evaluated_data(experiment, given, deployed=clock_of(path) == "wall")
    if len(dataset.train):
        check_origin(path, _without_files(experiment), dataset)
    return experiment, dataset


def _without_files(experiment: Experiment) -> Experiment:
    """The experiment without files that only the training needs, which may be gone."""
    faults = experiment.fleet.faults.model_copy(update={"trace": None})
    model = experiment.model.model_copy(update={"weights": None})
    fleet = experiment.fleet.model_copy(update={"faults": faults})
    return experiment.model_copy(update={"model": model, "fleet": fleet})


def _card(file: Path) -> Path:
    return file.with_name(f"{file.name}.md")
