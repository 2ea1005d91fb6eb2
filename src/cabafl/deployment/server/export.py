"""The model of a run that is not going on."""

from importlib import import_module
from pathlib import Path

from cabafl.assembly import make_server_task
from cabafl.checked import make_method
from cabafl.config import load_experiment
from cabafl.engine.checkpoint import load_checkpoint
from cabafl.errors import UserError
from cabafl.files import copy_whole
from cabafl.lifecycle.run import experiment_text
from cabafl.recording.folder import EXPERIMENT, MODEL, save_model


def export_stopped(run: Path, out: Path) -> str:
    """Writes the final model of a finished run, or that of the last checkpoint of an interrupted one."""
    try:
        return _export(run, out)
    except OSError as error:
        raise UserError(f"--out = {out}: cannot be written: {error.strerror or error}") from None


def _export(run: Path, out: Path) -> str:
    if (run / MODEL).exists():
        copy_whole(run / MODEL, out)
        return f"the final model: {out}"
    nothing = UserError(f"{run}: has no model yet; accepted: a run with a checkpoint, or one that is going on")
    if not (run / EXPERIMENT).exists():
        raise nothing
    experiment = load_experiment(run / EXPERIMENT)
    import_module("cabafl.engine.wall")  # a checkpoint contains objects of the engine
    make_method(experiment)  # and of the method's module
    checkpoint = load_checkpoint(run, experiment_text(run))
    if checkpoint is None:
        raise nothing
    layout = make_server_task(experiment).model.layout
    engine = checkpoint.engine
    average = engine["average"]
    save_model(out, layout.tensors(engine["model"] if average is None else average.model()))
    return f"version {engine['version']} at {engine['now']:.0f} s, from the last checkpoint: {out}"
