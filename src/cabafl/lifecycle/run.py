"""One run from start to finish, on either clock: recording, stopping, checkpoints, learning curve, summary."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from cabafl.config import Experiment
from cabafl.engine.checkpoint import Checkpoint, Snapshot, remove_checkpoints, take_snapshot, write_snapshot
from cabafl.engine.core import Engine
from cabafl.engine.tensors import Abandoned
from cabafl.files import cannot_record
from cabafl.learning.task import Layout
from cabafl.lifecycle.alerts import Alerts
from cabafl.lifecycle.ending import REQUEST, Ending
from cabafl.lifecycle.stopping import Paused, Stopped, signals
from cabafl.lifecycle.summary import summarise
from cabafl.loggers.describing import logged_run
from cabafl.loggers.desk import LogDesk
from cabafl.recording.events import Evaluated, Event
from cabafl.recording.folder import BEST_MODEL, CURVE, EXPERIMENT, MODEL, RAW_MODEL, RunFolder, save_model

Listener = Callable[[Event], None]
CHECKPOINT_SHARE = 0.05  # at most this share of the wall time goes into checkpoints
LOOK_INTERVAL = 0.5  # seconds between two looks at the wall clock and for a request to end the run; who reads the run
# folder meanwhile sees what happened up to then
MOST_POSTPONED = 10  # intervals between checkpoints after which one no longer waits for a pause between evaluations


class Driver(Protocol):
    """Drives an engine: with its own event queue in virtual time, or with the messages of real devices."""

    @property
    def engine(self) -> Engine:
        """The engine of the run."""

    def begin(self, state: dict[str, Any] | None) -> None:
        """Starts the run, or continues from the state of a checkpoint."""

    def step(self) -> bool:
        """Handles what happens next; False when the run is over. May raise `Paused` before it has changed anything."""

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint stores; None if there is nothing to store yet."""

    def saved(self, state: dict[str, Any]) -> None:
        """A checkpoint with this `state` is on disk. The run has gone on since: only numbers, strings and the like in
        ``state`` are still what they were."""

    def wake(self) -> None:
        """Interrupts `step` if it waits. Called by the signal handler that stops the run."""

    def end(self) -> None:
        """Ends the run before its time: one of the next calls of `step` returns False."""


class Saver:
    """Writes checkpoints while the run goes on: one thread at a time, for one checkpoint. All methods are called by the
    run's own thread."""

    def __init__(self, folder: RunFolder) -> None:
        self.seconds = 0.0  # what the last checkpoint took, taking its state included
        self._folder = folder
        self._state: dict[str, Any] = {}
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._abandoned = threading.Event()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint was begun that `wait` has not ended yet."""
        return self._thread is not None

    @property
    def written(self) -> bool:
        """Whether `wait` would return at once."""
        return self._thread is not None and not self._thread.is_alive()

    def begin(self, checkpoint: Checkpoint, began: float) -> None:
        """Keeps a state as it is now and starts to write it. ``began``: when the work on this checkpoint started, on
        the performance counter."""
        snapshot = take_snapshot(checkpoint)
        self._state, self._error = checkpoint.engine, None
        self._thread = threading.Thread(target=self._write, args=(snapshot, began), name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> dict[str, Any]:
        """Waits for the thread; returns the state that is on disk now. Raises `RunStopped` if it cannot be written."""
        assert self._thread is not None
        self._thread.join()
        self._thread = None
        if isinstance(self._error, OSError):
            raise cannot_record(self._error, self._folder.path) from self._error
        if self._error is not None:
            raise self._error
        state, self._state = self._state, {}
        return state

    def abandon(self) -> None:
        """Ends a checkpoint that is being written, after its next piece, without a result."""
        if self._thread is not None:
            self._abandoned.set()
            self._thread.join()
            self._thread = None

    def _write(self, snapshot: Snapshot, began: float) -> None:
        path = self._folder.path
        try:
            self._folder.sync()  # first: the checkpoint counts on the record up to its positions
            experiment = (path / EXPERIMENT).read_text(encoding="utf-8")
            write_snapshot(path, snapshot, experiment, self._abandoned.is_set)
        except Abandoned:
            pass
        except Exception as error:  # raised by `wait`
            self._error = error
        self.seconds = time.perf_counter() - began


class Lifecycle:
    """Everything around the engine: files, signals, checkpoints. Without a folder, nothing is written."""

    def __init__(
        self,
        experiment: Experiment,
        layout: Layout,
        folder: RunFolder | None,
        listener: Listener | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        torch.set_num_threads(1)  # the same bits here and in worker processes
        self.experiment = experiment
        self.layout = layout
        self.folder = folder
        self.listener = listener
        self.rows: list[Evaluated] = []
        self.ending = Ending(experiment.run, None if folder is None else folder.path)
        self.alerts = Alerts(warn)
        self.log = LogDesk(experiment.run.log, warn)
        self._looked_at = 0  # evaluations
        self._ended_by: str | None = None
        self._next_look = 0.0
        self._saver = None if folder is None else Saver(folder)
        self._signal: int | None = None
        self._started = self._saved = time.perf_counter()
        self._checkpoints = 0
        self._earlier = 0.0  # wall seconds before this process

    def carry_out(self, driver: Driver, checkpoint: Checkpoint | None) -> dict[str, Any]:
        """Runs to the end and returns the summary. On SIGINT or SIGTERM, saves a checkpoint and raises `Stopped`; the
        same if the driver raises `Paused`."""

        def stop(number: int) -> None:
            if self._signal is not None:
                raise KeyboardInterrupt  # the second signal stops at once
            self._signal = number
            driver.wake()

        with signals(stop), closing(self.log):
            try:
                self._begin(driver, checkpoint)
                self._advance(driver)
                self._ended_by = self.ending.reason  # the last evaluation, which follows, ends nothing
                self._keep_state(driver)
                driver.engine.conclude()
                self._wait_for_checkpoint(driver)
            except (Stopped, Paused):
                self._wait_for_checkpoint(driver)
                self._begin_checkpoint(driver)
                self._wait_for_checkpoint(driver)
                raise
            finally:
                if self._saver is not None:
                    self._saver.abandon()
                self._draw(driver.engine.clock)
            return self._finish(driver.engine)

    def _advance(self, driver: Driver) -> None:
        """Runs until the run is over."""
        told = False
        while True:
            if self.ending.reason is not None and not told:
                driver.end()
                told = True
            if not driver.step():
                return
            self._look_around(driver)

    def _look_around(self, driver: Driver) -> None:
        """Between two steps."""
        if self._saver is not None:
            self._look_after_checkpoints(self._saver, driver)
        if len(self.rows) > self._looked_at:
            self._looked_at = len(self.rows)
            self.alerts.look(driver.engine, self.rows[-1])
        now = time.perf_counter()
        if now >= self._next_look:
            self._next_look = now + LOOK_INTERVAL
            if self.folder is not None:
                self.folder.flush()
            if driver.engine.clock == "virtual":  # real devices have an operator for that
                self.ending.look(self._wall_seconds(driver.engine))

    def emit(self, event: Event) -> None:
        """Records an event and passes it on."""
        if type(event) is Evaluated:
            self.log.log(len(self.rows), event)
            self.rows.append(event)
            self.ending.see(event)
        if self.folder is not None:
            self.folder(event)
        if self.listener is not None:
            self.listener(event)

    def check_stop(self) -> None:
        """Raises `Stopped` if a signal has arrived. Only called where the engine's state is consistent."""
        if self._signal is not None:
            raise Stopped(self._signal)

    def _begin(self, driver: Driver, checkpoint: Checkpoint | None) -> None:
        if checkpoint is not None:
            assert self.folder is not None
            self._checkpoints, self._earlier = checkpoint.number, checkpoint.wall_seconds
            self.rows = self.folder.rows()
            for row in self.rows:
                self.ending.see(row)
        self._begin_logs(driver.engine.clock)
        driver.engine.outbox.patient = self.ending.by_evaluation and driver.engine.clock == "virtual"
        driver.begin(None if checkpoint is None else checkpoint.engine)

    def _begin_logs(self, clock: str) -> None:
        if self.experiment.run.log:
            path = None if self.folder is None else self.folder.path
            self.log.begin(logged_run(self.experiment, path, clock), self.rows)

    def _wall_seconds(self, engine: Engine) -> float:
        return engine.now if engine.clock == "wall" else self._earlier + time.perf_counter() - self._started

    def _look_after_checkpoints(self, saver: Saver, driver: Driver) -> None:
        """Called between two steps: begins a checkpoint that is due, or ends one that is written."""
        if saver.busy:
            if saver.written:
                self._wait_for_checkpoint(driver)
            return
        interval = max(self.experiment.run.checkpoint_every, saver.seconds / CHECKPOINT_SHARE)
        since = time.perf_counter() - self._saved
        if since > interval and (_settled(driver.engine) or since > MOST_POSTPONED * interval):
            self._begin_checkpoint(driver)

    def _begin_checkpoint(self, driver: Driver) -> None:
        """Takes the state and leaves the writing to another thread."""
        if self._saver is None:
            return
        began = self._saved = time.perf_counter()
        state = driver.state()
        if state is None:
            return
        assert self.folder is not None
        self._checkpoints += 1
        try:
            positions = self.folder.positions()
        except OSError as error:
            raise cannot_record(error, self.folder.path) from error
        checkpoint = Checkpoint(self._checkpoints, state, positions, self._wall_seconds(driver.engine))
        with _naming_attributes(driver.engine):
            self._saver.begin(checkpoint, began)

    def _keep_state(self, driver: Driver) -> None:
        """Keeps the state at the end of a simulation, before the method hears of it: from here it can be extended."""
        if self._extendable(driver.engine):
            self._wait_for_checkpoint(driver)
            self._begin_checkpoint(driver)

    def _extendable(self, engine: Engine) -> bool:
        return self.experiment.run.keep_state and engine.clock == "virtual"

    def _wait_for_checkpoint(self, driver: Driver) -> None:
        """Returns when no checkpoint is being written. Raises `RunStopped` if one could not be written."""
        if self._saver is None or not self._saver.busy:
            return
        with _naming_attributes(driver.engine):
            state = self._saver.wait()
        self._saved = time.perf_counter()
        driver.saved(state)

    def _draw(self, clock: str) -> None:
        if self.folder is None or not self.rows:
            return
        from cabafl.reporting.curve import draw_curve  # here, because importing matplotlib delays the start

        experiment, path = self.experiment, self.folder.path
        title = f"{experiment.method.name} on {experiment.data.dataset}, seed {experiment.seed}"
        try:
            draw_curve(self.rows, title, path / CURVE, clock)
        except OSError as error:
            raise cannot_record(error, path) from error

    def _finish(self, engine: Engine) -> dict[str, Any]:
        """Writes the model and then ``summary.json``, which marks the run as complete."""
        summary = summarise(self.experiment, engine, self.rows, self._wall_seconds(engine), self._ended_by)
        if self.folder is not None:
            try:
                self._save_models(self.folder, engine)
                self.folder.finish(summary)
            except OSError as error:
                raise cannot_record(error, self.folder.path) from error
            (self.folder.path / REQUEST).unlink(missing_ok=True)
            if not self._extendable(engine):
                remove_checkpoints(self.folder.path)
        self.log.finish(summary, None if self.folder is None else self.folder.path / MODEL)
        return summary

    def _save_models(self, folder: RunFolder, engine: Engine) -> None:
        """The model that the user takes away, and those beside it."""
        last, best = engine.result, engine.outbox.best
        if best is None or best.weights is None:
            models = {MODEL: last}
        elif self.experiment.run.keep == "best":
            models = {MODEL: best.weights}
        else:
            models = {BEST_MODEL: best.weights, MODEL: last}
        if engine.average is not None:
            models[RAW_MODEL] = engine.model
        for name, weights in models.items():
            save_model(folder.path / name, self.layout.tensors(weights))


@contextmanager
def _naming_attributes(engine: Engine) -> Iterator[None]:
    """Inside the context, a state that cannot be stored is one line about the attribute of the method that it is of."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError):
        engine.check_method()
        raise


def _settled(engine: Engine) -> bool:
    """Whether the state can be taken without waiting for an evaluation."""
    engine.outbox.flush()
    return not engine.outbox.waiting


def experiment_text(path: Path) -> str:
    """The text of a run folder's experiment file."""
    return (path / EXPERIMENT).read_text(encoding="utf-8")
