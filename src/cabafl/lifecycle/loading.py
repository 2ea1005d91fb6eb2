"""The model of a run, ready to be used: finished, interrupted or still going on."""

import json
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from cabafl.checked import make_method
from cabafl.config import load_experiment
from cabafl.data.raw import raw_inputs
from cabafl.engine.checkpoint import load_checkpoint
from cabafl.errors import UserError
from cabafl.learning.builtin_tasks import find_task
from cabafl.learning.spec import TaskSpec
from cabafl.learning.task import FlatModel
from cabafl.learning.weights import start_from
from cabafl.lifecycle.origin import find_modules
from cabafl.lifecycle.run import experiment_text
from cabafl.lifecycle.simulate import run_path
from cabafl.methods.base import Weights
from cabafl.recording.folder import BEST_MODEL, EXPERIMENT, MODEL, RAW_MODEL, SUMMARY, TASK
from cabafl.samples import load_data

Which = Literal["result", "raw", "best"]
ATTEMPTS = 3  # a run that is going on may replace its checkpoint while it is being read


@dataclass(frozen=True)
class LoadedModel:
    """A trained network with what it needs to be used: call it with samples as they are in the data set."""

    network: nn.Module
    """The network, in evaluation mode."""

    spec: TaskSpec
    """Form of the inputs, normalisation, classes and their names, learning task."""

    version: int | None = None
    """How many models were published up to this one."""

    time: float | None = None
    """When, in seconds of the run's clock."""

    which: Which = "result"
    """Which of the run's models it is; see `load_model`."""

    def inputs(self, x: npt.ArrayLike | Tensor) -> Tensor:
        """Samples as they were handed in for training, one or several: arrays, tensors, lists, or a pandas frame, whose
        columns are matched by name. Put into the form that the network takes exactly as the training samples were.

        Raises:
            UserError: If they have another form than those the network was trained with.
        """
        return raw_inputs(x, self.spec.form)

    def __call__(self, x: npt.ArrayLike | Tensor) -> Tensor:
        """The outputs of the network, one row per sample."""
        with torch.inference_mode():
            outputs: Tensor = self.network(self.inputs(x))
            return outputs

    def tensors(self) -> dict[str, Tensor]:
        """The weights by name, as in ``model.safetensors``."""
        model = FlatModel(self.network)
        return model.layout.tensors(model.save())

    def predict(self, x: npt.ArrayLike | Tensor) -> npt.NDArray[Any]:
        """One prediction per sample: a class (its name, if classes have names), a symbol, a row of 0 and 1 for several
        labels, or the numbers themselves."""
        outputs, targets = self(x), find_task(self.spec.task).targets
        if targets == "labels":
            return (outputs > 0).numpy().astype(np.int64)
        if targets == "numbers":
            return outputs.numpy()
        chosen = outputs.argmax(dim=-1).numpy()
        return np.array(self.spec.class_names)[chosen] if self.spec.class_names else chosen


def load_model(path: str | Path, which: Which = "result") -> LoadedModel:
    """Loads the model of a run with its preprocessing.

    Args:
        path: The run folder. If the run is not finished, its last checkpoint counts.
        which: ``result``: what the run gives away (``model.safetensors``); ``raw``: the last published model, also if
            models are averaged; ``best``: the best evaluated one, if ``run.keep`` keeps it.

    Raises:
        UserError: If there is no such model, or the folder is not that of a run.
    """
    path = run_path(path)
    if which not in ("result", "raw", "best"):
        raise UserError(f"which = {which!r}: accepted: result, raw, best")
    if not (path / EXPERIMENT).exists():
        raise UserError(f"{path}: not a run folder (it has no {EXPERIMENT})")
    find_modules(path)
    spec = _spec(path)
    model = FlatModel(spec.network())
    found = _saved(path, which, model) if (path / SUMMARY).exists() else _from_checkpoint(path, which)
    model.load(found.weights)
    return LoadedModel(model.network.eval(), spec, found.version, found.time, which)


def model_with(weights: Path, path: Path) -> LoadedModel:
    """The network of a run with weights from a file."""
    spec = _spec(path)
    model = FlatModel(spec.network())
    start_from(model, weights)
    return LoadedModel(model.network.eval(), spec)


class _Found(NamedTuple):
    weights: Weights
    version: int | None
    time: float | None


def _spec(path: Path) -> TaskSpec:
    """As it was recorded; runs of older versions have the data set to find it out."""
    if not (path / TASK).exists():
        experiment = load_experiment(path / EXPERIMENT)
        return TaskSpec.of(experiment, load_data(experiment))
    try:
        return TaskSpec.model_validate_json((path / TASK).read_bytes())
    except OSError as error:
        raise UserError(f"{path / TASK}: cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = " ".join([".".join(map(str, first["loc"])), first["msg"].lower()]).strip()[:200]
        raise UserError(f"{path / TASK}: cannot be read: {reason}; accepted: what `cabafl run` wrote") from None


def _saved(path: Path, which: Which, model: FlatModel) -> _Found:
    only_best = load_experiment(path / EXPERIMENT).run.keep == "best"
    raw = RAW_MODEL if (path / RAW_MODEL).exists() else MODEL
    name = {"result": MODEL, "raw": raw, "best": MODEL if only_best else BEST_MODEL}[which]
    if which == "raw" and name == MODEL and only_best:
        raise UserError(f"which = 'raw': run.keep = best, so that {path} has no other model; accepted: result, best")
    try:
        tensors = load_file(path / name)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path / name}: cannot be read: {error}{_hint(which)}") from None
    layout = model.layout
    found = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    if found != dict(zip(layout.names, layout.shapes, strict=True)):
        raise UserError(f"{path / name}: has other tensors than model.name = the one of {path / EXPERIMENT}")
    weights = np.concatenate([tensors[key].float().flatten().numpy() for key in layout.names])
    return _Found(weights, *_when(path, best=which == "best" or (only_best and name == MODEL)))


def _when(path: Path, best: bool) -> tuple[int | None, float | None]:
    """Version and time of the final or the best model; None if the summary does not tell."""
    try:
        summary = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
        keys = ("best_version", "best_time") if best else ("versions", "time")
        return int(summary[keys[0]]), float(summary[keys[1]])
    except (OSError, ValueError, KeyError, TypeError):
        return None, None


def _from_checkpoint(path: Path, which: Which) -> _Found:
    for engine in ("virtual", "wall"):
        import_module(f"cabafl.engine.{engine}")  # a checkpoint contains objects of the engine
    experiment = load_experiment(path / EXPERIMENT)
    make_method(experiment)  # and of the method's module
    for attempt in range(ATTEMPTS):
        try:
            checkpoint = load_checkpoint(path, experiment_text(path))
            break
        except UserError:
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(0.2)
    if checkpoint is None:
        raise UserError(f"{path}: has no model yet; accepted: a finished run, or one with a checkpoint")
    engine_state = checkpoint.engine
    best = engine_state["best"]
    kept = None if best is None else best.weights  # None as well before the first evaluation
    if which == "best" and kept is None:
        raise UserError(f"{path}: the best model is not kept{_hint(which)}")
    if kept is not None and (which == "best" or (which == "result" and experiment.run.keep == "best")):
        return _Found(np.asarray(kept), best.version, best.time)
    average = engine_state["average"]
    weights = np.asarray(engine_state["model"] if average is None or which == "raw" else average.model())
    return _Found(weights, engine_state["version"], engine_state["now"])


def _hint(which: Which) -> str:
    return "; accepted: a run with run.keep = best or both" if which == "best" else ""
