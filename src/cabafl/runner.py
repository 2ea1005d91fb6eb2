"""Runs one experiment in virtual time, from the beginning or from a checkpoint."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from cabafl.assembly import Parts, assemble
from cabafl.config import Experiment, load_experiment
from cabafl.engine.checkpoint import Checkpoint, load_checkpoint, remove_checkpoints, save_checkpoint
from cabafl.engine.core import Engine, Limits
from cabafl.errors import RunStopped, UserError
from cabafl.execution.base import Executor
from cabafl.execution.choice import open_executor
from cabafl.learning.dp import DpSgd, epsilon
from cabafl.recording.environment import environment
from cabafl.recording.events import Evaluated, Event
from cabafl.recording.folder import CURVE, EXPERIMENT, JOURNAL, SUMMARY, RunFolder, out_of_space
from cabafl.recording.summary import summarise
from cabafl.simulation.engine import Simulation
from cabafl.toml import experiment_toml

if TYPE_CHECKING:
    import pandas as pd

Listener = Callable[[Event], None]
EXECUTION_KEYS = ("run.workers", "run.executor", "run.ray_address", "run.checkpoint_every")
CHECKPOINT_SHARE = 0.05  # at most this share of the wall time goes into checkpoints


class Stopped(BaseException):
    """SIGINT or SIGTERM: the run can be resumed."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


@dataclass(frozen=True)
class Result:
    """What a run gives back."""

    summary: dict[str, Any]
    metrics: "pd.DataFrame"
    model: nn.Module
    folder: Path | None


def simulate(
    experiment: Experiment,
    out: str | Path | None = None,
    listener: Listener | None = None,
    warn: Callable[[str], None] | None = None,
) -> Result:
    """Runs an experiment; with ``out`` it also writes the run folder. ``listener`` sees every event as it happens."""
    with open_executor(experiment, warn) as workers:
        parts = assemble(experiment)
        if warn is not None and getattr(parts.parameters, "features", None) == "labels":
            warn("method.features = labels: every device tells the server how many samples of each class it has")
        executor = workers.for_task(parts.task)
        folder = None
        if out is not None:
            folder = RunFolder.create(Path(out), experiment_toml(experiment, parts.parameters), environment())
        return _Run(parts, executor, folder, listener).carry_out(None)


def resume(
    path: str | Path,
    listener: Listener | None = None,
    warn: Callable[[str], None] | None = None,
    settings: Sequence[str] = (),
) -> Result | None:
    """Continues an interrupted run in its folder, to the bytes of an uninterrupted one; None if it is complete.

    ``settings`` may change how it is carried out (run.workers=4), not what is computed.
    """
    path = Path(path)
    if (path / SUMMARY).exists():
        return None
    if not (path / EXPERIMENT).exists():
        raise UserError(f"{path}: not a run folder (it has no {EXPERIMENT})")
    if (path / JOURNAL).exists():
        raise UserError(
            f"{path}: a run on real devices; accepted: `cabafl deploy server` or `local`, which goes on with it"
        )
    for text in settings:
        if text.partition("=")[0] not in EXECUTION_KEYS:
            raise UserError(f"{text}: cannot change on resuming; accepted: {', '.join(EXECUTION_KEYS)}")
    experiment = load_experiment(path / EXPERIMENT, settings)
    with closing(RunFolder.reopen(path)) as folder, open_executor(experiment, warn) as workers:
        if (path / SUMMARY).exists():  # whoever had the folder has finished the run
            return None
        parts = assemble(experiment)
        checkpoint = load_checkpoint(path, (path / EXPERIMENT).read_text(encoding="utf-8"))
        folder.rewind(None if checkpoint is None else checkpoint.positions)
        executor = workers.for_task(parts.task)
        return _Run(parts, executor, folder, listener).carry_out(checkpoint)


class _Run:
    def __init__(self, parts: Parts, executor: Executor, folder: RunFolder | None, listener: Listener | None) -> None:
        torch.set_num_threads(1)  # the same bits here and in worker processes
        self.parts = parts
        self.folder = folder
        self.listener = listener
        self.rows: list[Evaluated] = []
        self.signal: int | None = None
        self.engine = make_engine(parts, executor, self._emit, self._interrupt)
        self.started = self.saved = time.perf_counter()
        self.saving = 0.0  # seconds the last checkpoint took
        self.checkpoints = 0
        self.earlier = 0.0  # wall seconds before this process

    def carry_out(self, checkpoint: Checkpoint | None) -> Result:
        with ExitStack() as cleanup:
            if self.folder is not None:
                cleanup.callback(self.folder.close)
            cleanup.enter_context(signals(self._stop))
            try:
                self._begin(checkpoint)
                while self.engine.step():
                    if self._checkpoint_due():
                        self._save()
                self.engine.finish()
            except Stopped:
                self._save()
                raise
            finally:
                self._draw()
            return self._finish()

    def _begin(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            self.engine.start()
            return
        assert self.folder is not None
        self.engine.restore(checkpoint.engine)
        self.checkpoints, self.earlier = checkpoint.number, checkpoint.wall_seconds
        self.rows = self.folder.rows()

    def _emit(self, event: Event) -> None:
        if isinstance(event, Evaluated):
            self.rows.append(event)
        if self.folder is not None:
            self.folder(event)
        if self.listener is not None:
            self.listener(event)

    def _stop(self, number: int) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt  # asked twice: at once
        self.signal = number

    def _interrupt(self) -> None:
        if self.signal is not None:
            raise Stopped(self.signal)

    @property
    def wall_seconds(self) -> float:
        return self.earlier + time.perf_counter() - self.started

    def _checkpoint_due(self) -> bool:
        interval = max(self.parts.experiment.run.checkpoint_every, self.saving / CHECKPOINT_SHARE)
        return self.folder is not None and time.perf_counter() - self.saved > interval

    def _save(self) -> None:
        if self.folder is None:
            return
        began = time.perf_counter()
        self.checkpoints += 1
        try:
            state = self.engine.state()
            checkpoint = Checkpoint(self.checkpoints, state, self.folder.positions(), self.wall_seconds)
            save_checkpoint(self.folder.path, checkpoint, (self.folder.path / EXPERIMENT).read_text(encoding="utf-8"))
        except OSError as error:
            raise out_of_space(error, self.folder.path) from error
        self.saved = time.perf_counter()
        self.saving = self.saved - began

    def _finish(self) -> Result:
        import pandas as pd  # here, because a run starts sooner without it

        parts, engine = self.parts, self.engine
        summary = summary_of(parts.experiment, engine, self.rows, self.wall_seconds)
        if self.folder is not None:
            complete(self.folder, parts.task.model.layout.tensors(engine.model), summary)
        parts.task.model.load(engine.model)
        metrics = pd.DataFrame(self.rows, columns=list(Evaluated._fields))
        return Result(
            summary, metrics, parts.task.model.network.eval(), None if self.folder is None else self.folder.path
        )

    def _draw(self) -> None:
        if self.folder is not None:
            draw(self.folder.path, self.parts.experiment, self.rows)


def summary_of(experiment: Experiment, engine: Engine, rows: list[Evaluated], wall_seconds: float) -> dict[str, Any]:
    """What ``summary.json`` says."""
    ledger = engine.ledger
    spent = {} if experiment.privacy.dp_clip is None else {"epsilon": _epsilon(experiment, engine)}
    return {
        "method": experiment.method.name,
        "seed": experiment.seed,
        "clock": engine.clock_name,
        **summarise(rows, engine.selections, ledger.losses, ledger.slowed, ledger.staleness),
        **spent,
        "wall_seconds": wall_seconds,
    }


def _epsilon(experiment: Experiment, engine: Engine) -> float:
    """Of the device that gave most away: the one with the most steps times the square of its share per step."""
    private, training = experiment.privacy, experiment.training
    assert private.dp_clip is not None
    sizes = np.maximum(engine.sizes, 1)
    steps = engine.selections * training.epochs * np.maximum(1, np.ceil(sizes / training.batch_size)).astype(np.int64)
    most = int(np.argmax(steps * np.minimum(1.0, training.batch_size / sizes) ** 2))
    how = DpSgd(private.dp_clip, private.dp_noise)
    return epsilon(how, int(sizes[most]), training.batch_size, int(steps[most]), private.dp_delta)


def complete(folder: RunFolder, model: Mapping[str, torch.Tensor], summary: Mapping[str, Any]) -> None:
    """The last files of a run."""
    try:
        folder.save_model(model)
        folder.finish(summary)
    except OSError as error:
        raise out_of_space(error, folder.path) from error
    remove_checkpoints(folder.path)


def draw(path: Path, experiment: Experiment, rows: Sequence[Evaluated], clock: str = "virtual") -> None:
    """The learning curve so far."""
    from cabafl.reporting.curve import draw_curve  # matplotlib: only now

    if not rows:
        return
    title = f"{experiment.method.name} on {experiment.data.dataset}, seed {experiment.seed}"
    times, accuracy = [r.virtual_time for r in rows], [r.accuracy for r in rows]
    try:
        draw_curve(times, accuracy, title, path / CURVE, clock)
    except OSError as error:
        raise out_of_space(error, path) from error


@contextmanager
def signals(stop: Callable[[int], None]) -> Iterator[None]:
    """SIGINT and SIGTERM ask the run to stop between two events; only the main thread can take signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda n, _frame: stop(n)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def make_engine(
    parts: Parts, executor: Executor, emit: Listener, interrupt: Callable[[], None] | None = None
) -> Simulation:
    """The engine for assembled parts."""
    training = parts.experiment.training
    return Simulation(
        parts.method,
        parts.fleet,
        executor,
        parts.task.model.save(),
        seed=parts.experiment.seed,
        slots=parts.slots,
        limits=limits_of(parts.experiment, parts.experiment.run.virtual_time),
        parameters=parts.task.model.layout.parameters,
        epochs=training.epochs,
        learning_rate=training.learning_rate,
        faults=parts.faults,
        emit=emit,
        interrupt=interrupt,
    )


def limits_of(experiment: Experiment, seconds: float | None) -> Limits:
    """The limits of a run that lasts so long on its engine's clock."""
    run = experiment.run
    return Limits(
        seconds=seconds,
        max_dispatches=run.max_dispatches,
        evaluate_every=run.evaluate_every,
        evaluate_aggregations=run.evaluate_aggregations,
        slot_timeout=run.slot_timeout,
        max_staleness=run.max_staleness,
    )


__all__ = [
    "Result",
    "RunStopped",
    "Stopped",
    "complete",
    "draw",
    "limits_of",
    "make_engine",
    "resume",
    "signals",
    "simulate",
    "summary_of",
]
