"""Ends a simulation early, with all its results: `cabafl finish`."""

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from cabafl.assembly import assemble
from cabafl.config import Experiment, load_experiment
from cabafl.engine.checkpoint import load_checkpoint
from cabafl.errors import UserError
from cabafl.execution.inline import InlineWorkers
from cabafl.files import Busy
from cabafl.lifecycle.ending import REQUEST
from cabafl.lifecycle.origin import check_data
from cabafl.lifecycle.run import Listener, experiment_text
from cabafl.lifecycle.simulate import Audience, carry_out, check_simulation, one_thread
from cabafl.recording.folder import EXPERIMENT, SUMMARY, RunFolder

ASK_INTERVAL = 0.2  # seconds between two looks at a process that was asked to end its run


def finish(path: str | Path, listener: Listener | None = None) -> dict[str, Any]:
    """Ends a simulation where it is, with model, summary and learning curve.

    A run that another process is working on ends there, at its present time. An interrupted run ends at its last
    checkpoint. Both can go on later: see `resume`.

    Args:
        path: The run folder.
        listener: See `simulate`.

    Returns:
        The content of ``summary.json``; of a finished run, nothing is changed.

    Raises:
        UserError: If the folder holds no simulation, or none that has a checkpoint yet.
    """
    path = Path(path)
    check_simulation(path)
    experiment = load_experiment(path / EXPERIMENT)
    while not (path / SUMMARY).exists():
        try:
            folder = RunFolder.reopen(path, patience=0.0)
        except Busy:
            _ask(path)
            time.sleep(ASK_INTERVAL)
            continue
        with closing(folder), one_thread():
            if not (path / SUMMARY).exists():
                _end_here(experiment, folder, listener)
    (path / REQUEST).unlink(missing_ok=True)
    summary: dict[str, Any] = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
    return summary


def _ask(path: Path) -> None:
    (path / REQUEST).touch()


def _end_here(experiment: Experiment, folder: RunFolder, listener: Listener | None) -> None:
    """Goes to the checkpoint and no further."""
    parts = assemble(experiment)  # first: a checkpoint contains objects of the method's module
    check_data(folder.path, experiment, parts.task.dataset)
    checkpoint = load_checkpoint(folder.path, experiment_text(folder.path))
    if checkpoint is None:
        raise UserError(f"{folder.path}: has no checkpoint yet; accepted: a run that was stopped, or `cabafl resume`")
    folder.rewind(checkpoint.positions)
    carry_out(parts, InlineWorkers().for_task(parts.task), Audience(folder, listener), checkpoint, end="finish")
