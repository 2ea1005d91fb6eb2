"""Changes when a simulation ends, although it has begun or is finished: `cabafl resume DIR run.virtual_time=24000`."""

import json
from collections.abc import Sequence
from pathlib import Path

from cabafl.checked import make_method
from cabafl.config import LENGTH_KEYS, Experiment, load_experiment
from cabafl.engine.checkpoint import Checkpoint, accept_experiment
from cabafl.engine.core import FOREVER
from cabafl.errors import UserError
from cabafl.files import sync_folder, write_atomic
from cabafl.lifecycle.ending import Ending
from cabafl.recording.events import Evaluated
from cabafl.recording.folder import EXPERIMENT, SUMMARY
from cabafl.toml import experiment_toml


def changes_length(before: Experiment, after: Experiment) -> bool:
    """Whether the run ends at another time."""
    return any(getattr(before.run, key) != getattr(after.run, key) for key in LENGTH_KEYS)


def is_moved(experiment: Experiment, path: Path) -> bool:
    """Whether files are no longer where the run in the folder has them."""
    before = load_experiment(path / EXPERIMENT)
    return (before.data, before.model, before.fleet) != (experiment.data, experiment.model, experiment.fleet)


def goes_on(path: Path, settings: Sequence[str]) -> bool:
    """Whether the settings ask a run that was finished before its time to go on, even to the length it had."""
    asked = any(text.partition("=")[0].strip() == f"run.{key}" for text in settings for key in LENGTH_KEYS)
    if not asked or not (path / SUMMARY).exists():
        return False
    try:
        summary = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("ended_by") == "finish"


def check_extension(
    experiment: Experiment, path: Path, checkpoint: Checkpoint | None, rows: Sequence[Evaluated]
) -> None:
    """Raises `UserError` if the run cannot go on from its checkpoint to the end that the experiment has now. ``rows``:
    the evaluations up to the checkpoint."""
    if checkpoint is None:
        if (path / SUMMARY).exists():
            raise UserError(
                f"{path}: its last state was not kept (run.keep_state = false, or an older version); accepted: a run "
                "that keeps it"
            )
        return  # nothing is on disk yet: the run starts anew, with its new length
    run, reached = experiment.run, float(checkpoint.engine["now"])
    length = FOREVER if run.virtual_time is None else run.virtual_time
    if length < reached:
        raise UserError(
            f"run.virtual_time = {length:g}: the run has reached {reached:g} s; accepted: {reached:g} or more"
        )
    _check_schedule(experiment, path)
    sent = checkpoint.engine["ledger"].dispatches
    if run.max_dispatches is not None and sent >= run.max_dispatches:
        raise UserError(
            f"run.max_dispatches = {run.max_dispatches}: all these jobs were sent, so that the run is over; accepted: "
            "a new run"
        )
    ending = Ending(run)
    for row in rows:
        ending.see(row)
    ending.look(checkpoint.wall_seconds)
    if ending.reason is not None:
        key, value = f"run.{ending.reason}", getattr(run, ending.reason)
        same = getattr(load_experiment(path / EXPERIMENT).run, ending.reason) == value
        found = "the run ended for that" if same else "the run has reached that before its present end"
        raise UserError(f"{key} = {value:g}: {found}; accepted: {key}=none, or a value not reached yet")


def _check_schedule(experiment: Experiment, path: Path) -> None:
    training = experiment.training
    longer = load_experiment(path / EXPERIMENT).run.virtual_time != experiment.run.virtual_time
    over_time = training.schedule == "cosine" and training.schedule_over == "time"
    if longer and over_time and training.schedule_length is None:
        raise UserError(
            "training.schedule_length: not set, so that the learning rate follows the length of the run; accepted: a "
            "run with a length of its own for the schedule"
        )


def extend(experiment: Experiment, path: Path) -> None:
    """Makes the run in the folder an unfinished one with the end that the experiment has now.

    A kill at any moment leaves a folder that can be continued: first the checkpoint accepts both experiments, then the
    run is unfinished, with its old end, then it has the new one.
    """
    text = experiment_toml(experiment, make_method(experiment).parameters)
    accept_experiment(path, text)
    (path / SUMMARY).unlink(missing_ok=True)
    sync_folder(path)
    write_atomic(path / EXPERIMENT, text.encode())
