"""Runs one experiment in virtual time, from the beginning or from a checkpoint."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from cabafl.assembly import SimulationParts, announce, assemble, engine_setup
from cabafl.config import EXECUTION_KEYS, Experiment, load_experiment
from cabafl.engine.checkpoint import Checkpoint, load_checkpoint
from cabafl.engine.virtual import VirtualEngine
from cabafl.errors import UserError
from cabafl.execution.base import Executor, Interrupt
from cabafl.execution.choice import open_executor
from cabafl.lifecycle.run import Lifecycle, Listener, experiment_text
from cabafl.recording.environment import environment
from cabafl.recording.events import Evaluated
from cabafl.recording.folder import EXPERIMENT, JOURNAL, SUMMARY, RunFolder
from cabafl.toml import experiment_toml

if TYPE_CHECKING:
    import pandas as pd

Warn = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """What a run gives back: figures, one row of metrics per evaluation, the last global model, the run folder."""

    summary: dict[str, Any]
    metrics: "pd.DataFrame"
    model: nn.Module
    folder: Path | None


def simulate(
    experiment: Experiment,
    out: str | Path | None = None,
    listener: Listener | None = None,
    warn: Warn | None = None,
) -> Result:
    """Runs an experiment; with ``out`` it also writes the run folder. ``listener`` sees every event as it happens."""
    with open_executor(experiment, warn) as workers:
        parts = assemble(experiment)
        announce(parts.method, warn)
        executor = workers.for_task(parts.task)
        folder = None
        if out is not None:
            toml = experiment_toml(experiment, parts.method.parameters)
            folder = RunFolder.create(Path(out), toml, environment(VirtualEngine.clock))
        return _carry_out(parts, executor, folder, listener)


def resume(
    path: str | Path,
    listener: Listener | None = None,
    warn: Warn | None = None,
    settings: Sequence[str] = (),
) -> Result | None:
    """Continues an interrupted run in its folder, to the bytes of an uninterrupted one; None if it is complete.

    ``settings`` may change how it is carried out (run.workers=4), not what is computed.
    """
    path = Path(path)
    if (path / SUMMARY).exists():
        return None
    _check_resumable(path, settings)
    experiment = load_experiment(path / EXPERIMENT, settings)
    with closing(RunFolder.reopen(path)) as folder, open_executor(experiment, warn) as workers:
        if (path / SUMMARY).exists():  # the process that held the folder has finished the run
            return None
        parts = assemble(experiment)
        checkpoint = load_checkpoint(path, experiment_text(path))
        folder.rewind(None if checkpoint is None else checkpoint.positions)
        return _carry_out(parts, workers.for_task(parts.task), folder, listener, checkpoint)


def _check_resumable(path: Path, settings: Sequence[str]) -> None:
    if not (path / EXPERIMENT).exists():
        raise UserError(f"{path}: not a run folder (it has no {EXPERIMENT})")
    if (path / JOURNAL).exists():
        raise UserError(
            f"{path}: a run on real devices; accepted: `cabafl deploy server` or `local`, which goes on with it"
        )
    accepted = [f"run.{key}" for key in EXECUTION_KEYS]
    for text in settings:
        if text.partition("=")[0] not in accepted:
            raise UserError(f"{text}: cannot change on resuming; accepted: {', '.join(accepted)}")


class VirtualDriver:
    """A simulation moves on by itself: see `lifecycle.run.Driver`."""

    def __init__(self, engine: VirtualEngine) -> None:
        self.engine = engine
        self.step = engine.step
        self.state = engine.state

    def begin(self, state: dict[str, Any] | None) -> None:
        """Time 0, or where a checkpoint was taken."""
        if state is None:
            self.engine.start()
        else:
            self.engine.restore(state)

    def saved(self) -> None:
        """Nothing else depends on a checkpoint."""

    def wake(self) -> None:
        """Nothing waits for long: executors look for a stop every half second."""


def _carry_out(
    parts: SimulationParts,
    executor: Executor,
    folder: RunFolder | None,
    listener: Listener | None,
    checkpoint: Checkpoint | None = None,
) -> Result:
    model = parts.task.model
    run = Lifecycle(parts.experiment, model.layout, folder, listener)
    engine = make_engine(parts, executor, run.emit, run.check_stop)
    try:
        with np.errstate(over="ignore"):  # of the norm of a model that grows without bound, which is rejected for it
            summary = run.carry_out(VirtualDriver(engine), checkpoint)
    finally:
        if folder is not None:
            folder.close()
    import pandas as pd  # here, because a run starts sooner without it

    model.load(engine.model)
    metrics = pd.DataFrame(run.rows, columns=list(Evaluated._fields))
    return Result(summary, metrics, model.network.eval(), None if folder is None else folder.path)


def make_engine(
    parts: SimulationParts, executor: Executor, emit: Listener, interrupt: Interrupt | None = None
) -> VirtualEngine:
    """The engine for assembled parts."""
    setup = engine_setup(parts, executor, emit, parts.experiment.run.virtual_time)
    return VirtualEngine(setup, parts.fleet, parts.faults, interrupt)
