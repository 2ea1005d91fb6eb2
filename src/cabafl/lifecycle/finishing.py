"""Ends a simulation early, with all its results: `cabafl finish`."""

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from cabafl.assembly import assemble
from cabafl.config import Experiment
from cabafl.data.dataset import Dataset
from cabafl.errors import UserError
from cabafl.execution.base import Warn
from cabafl.execution.inline import InlineWorkers
from cabafl.files import Busy
from cabafl.lifecycle.ending import REQUEST
from cabafl.lifecycle.origin import without_start
from cabafl.lifecycle.run import Listener
from cabafl.lifecycle.simulate import (
    Audience,
    carry_out,
    changed_experiment,
    check_simulation,
    one_thread,
    prepare,
    run_path,
)
from cabafl.recording.folder import CHECKPOINT, SUMMARY, RunFolder
from cabafl.recording.summary_file import decoded
from cabafl.samples import with_given

ASK_INTERVAL = 0.2  # seconds between two looks at a process that was asked to end its run
FIRST_NOTICE, NEXT_NOTICE = 5.0, 60.0  # seconds of waiting for it after which whoever waits is told


def finish(
    path: str | Path,
    listener: Listener | None = None,
    warn: Warn | None = None,
    settings: Sequence[str] = (),
    data: Any = None,
) -> dict[str, Any]:
    """Ends a simulation where it is, with model, summary and learning curve.

    A run that another process is working on ends there, at its present time. An interrupted run ends at its last
    checkpoint. Both can go on later: see `resume`.

    Args:
        path: The run folder.
        listener: See `simulate`.
        warn: See `simulate`; also told if the process that works on the run takes its time.
        settings: Where files are that were moved since the run began (``data.root=...``); others are refused.
        data: The same samples again, if they were handed in to `simulate` and the run was interrupted.

    Returns:
        The content of ``summary.json``; of a finished run, nothing is changed.

    Raises:
        UserError: If the folder holds no simulation, or none that has a checkpoint yet.
    """
    path = run_path(path)
    check_simulation(path)
    experiment, given = with_given(changed_experiment(path, settings, lengths=False), data)
    patience = _Patience(path, warn)
    while not (path / SUMMARY).exists():
        try:
            folder = RunFolder.reopen(path, patience=0.0)
        except Busy:
            patience.ask_and_wait()
            continue
        with closing(folder), one_thread():
            if not (path / SUMMARY).exists():
                _end_here(experiment, given, folder, Audience(folder, listener, warn))
    (path / REQUEST).unlink(missing_ok=True)
    return summary_of(path)


def summary_of(path: Path) -> dict[str, Any]:
    """The content of ``summary.json``; raises `UserError` if it is damaged."""
    try:
        summary: dict[str, Any] = decoded((path / SUMMARY).read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path / SUMMARY}: cannot be read: {error}; accepted: what `cabafl run` wrote") from None
    return summary


class _Patience:
    """Waits for another process, and says so after a while."""

    def __init__(self, path: Path, warn: Warn | None) -> None:
        self._path, self._warn = path, warn
        self._began, self._notice = time.monotonic(), FIRST_NOTICE

    def ask_and_wait(self) -> None:
        """Asks it to end the run, and waits a little."""
        try:
            (self._path / REQUEST).touch()
        except OSError as error:
            raise UserError(f"{self._path / REQUEST}: cannot be written: {error.strerror}") from None
        seconds = time.monotonic() - self._began
        if self._warn is not None and seconds >= self._notice:
            self._notice += NEXT_NOTICE
            self._warn(
                f"{self._path}: asked the process that writes this run {seconds:.0f} s ago to end it, no answer yet; "
                "it looks between two jobs; Ctrl-C stops the waiting, the request stays; if the process hangs, end it "
                "and try again"
            )
        time.sleep(ASK_INTERVAL)


def _end_here(experiment: Experiment, given: Dataset | None, folder: RunFolder, audience: Audience) -> None:
    """Goes to the checkpoint and no further."""
    if not (folder.path / CHECKPOINT).exists():
        raise UserError(f"{folder.path}: has no checkpoint yet; accepted: a run that was stopped, or `cabafl resume`")
    parts = assemble(without_start(experiment, folder.path), given)  # first: a checkpoint has objects of its modules
    checkpoint = prepare(experiment, parts, folder)
    carry_out(parts, InlineWorkers().for_task(parts.task), audience, checkpoint, end="finish")
