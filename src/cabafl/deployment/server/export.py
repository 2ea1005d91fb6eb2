"""The model of a run that is not going on."""

from pathlib import Path

from cabafl.errors import UserError
from cabafl.files import copy_whole
from cabafl.lifecycle.loading import load_model
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
    if not (run / EXPERIMENT).exists():
        raise UserError(f"{run}: has no model yet; accepted: a run with a checkpoint, or one that is going on")
    model = load_model(run)
    save_model(out, model.tensors())
    return f"version {model.version} at {model.time:.0f} s, from the last checkpoint: {out}"
