"""Runs one experiment in virtual time, from the beginning or from a checkpoint."""

import base64
import html
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from cabafl.assembly import SimulationParts, announce, assemble, engine_setup, own_code
from cabafl.checked import make_method
from cabafl.config import EXECUTION_KEYS, LENGTH_KEYS, Experiment, load_experiment
from cabafl.data.dataset import Dataset
from cabafl.engine.checkpoint import Checkpoint, load_checkpoint
from cabafl.engine.core import FOREVER
from cabafl.engine.virtual import VirtualEngine
from cabafl.errors import UserError
from cabafl.execution.base import Executor, Interrupt, Warn
from cabafl.execution.choice import open_executor
from cabafl.files import cannot_record
from cabafl.lifecycle.ending import REQUEST, Reason
from cabafl.lifecycle.extension import changes_length, check_extension, extend, goes_on, is_moved
from cabafl.lifecycle.notebook import attended
from cabafl.lifecycle.origin import (
    PLACES,
    check_environment,
    check_origin,
    find_modules,
    origin,
    with_absolute_paths,
    without_start,
)
from cabafl.lifecycle.run import Lifecycle, Listener, experiment_text
from cabafl.lifecycle.stopping import Paused
from cabafl.own_code import blaming
from cabafl.recording.environment import environment
from cabafl.recording.events import Evaluated
from cabafl.recording.folder import EXPERIMENT, JOURNAL, METRICS, SUMMARY, RunFolder, remove_unbegun
from cabafl.samples import with_given
from cabafl.toml import experiment_toml

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Result:
    """What a simulation returns."""

    summary: dict[str, Any]
    """The content of ``summary.json``."""

    model: nn.Module
    """The last global model, or the average of all with ``run.average``; in evaluation mode."""

    folder: Path | None
    """The run folder; None if nothing was written."""

    rows: tuple[Evaluated, ...] = ()
    """The evaluations as they were recorded."""

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """One row per evaluation, with the columns of ``metrics.csv``."""
        import pandas as pd  # here, because importing pandas takes a tenth of a short run

        return pd.DataFrame([row.numbers for row in self.rows], columns=list(self.rows[0].columns))

    def __repr__(self) -> str:
        where = "nothing written" if self.folder is None else str(self.folder)
        return f"<Result {self._title()}: {self._figures()}; {where}>"

    def plot(self) -> "Figure":
        """The learning curve as a matplotlib figure, which a notebook shows."""
        from cabafl.reporting.curve import learning_curve  # here, because importing matplotlib delays the start

        return learning_curve(self.rows, self._title(), self.summary["clock"])

    def _repr_html_(self) -> str:
        """For notebooks: the figures and the learning curve."""
        from cabafl.reporting.curve import as_png

        text = html.escape(f"{self._title()}: {self._figures()}")
        image = base64.b64encode(as_png(self.plot())).decode()
        return f'<p>{text}</p><img alt="learning curve" width="640" src="data:image/png;base64,{image}">'

    def _title(self) -> str:
        return f"{self.summary['method']}, seed {self.summary['seed']}"

    def _figures(self) -> str:
        last, metric = self.rows[-1], self.rows[-1].metric
        best = self.summary["best_window_mean"]
        window = "" if best is None else f", best window {metric.text(best)}{metric.unit}"
        return f"{metric.title} {metric.text(last.value)}{metric.unit} at {last.time:g} s{window}"


def simulate(
    experiment: Experiment,
    out: str | Path | None = None,
    listener: Listener | None = None,
    warn: Warn | None = None,
    until: float | None = None,
    data: Any = None,
) -> Result:
    """Runs an experiment in virtual time, from the beginning.

    Args:
        experiment: What to run; see `load_experiment`.
        out: The run folder to write, new or empty. None: nothing is written.
        listener: Called with every event as it happens (the classes of ``cabafl.recording.events``). None: a notebook
            shows the progress and the learning curve.
        warn: Called with one line about each problem from which the run recovered.
        until: Stop at this virtual time, with a checkpoint in ``out``; `resume` continues, to the same bytes. None, or
            a time after the end of the run: run to the end.
        data: The samples, instead of a data set that the experiment names: a mapping of arrays ``x_train``,
            ``y_train``, ``x_test``, ``y_test`` and optionally ``user_train`` and ``user_test``; or ``(train, test)``,
            each a torch dataset, a pandas frame, ``(x, y)`` or ``(x, y, users)``; or one of these alone with
            ``data.test_share``. The columns of a frame are named by ``data.label_column`` and ``data.user_column``.

    Raises:
        UserError: If the experiment cannot be run as described, or ``out`` is not empty.
        Paused: At the time ``until``.
        RunStopped: If the run cannot go on, for example because the disk is full; `resume` continues it.
        Stopped: After SIGINT or SIGTERM, with a checkpoint in ``out``. It is a `KeyboardInterrupt`.
    """
    _check_arguments(experiment, out, until)
    with attended(experiment, out, listener, warn) as (listens, warns):
        return _simulate(experiment, out, Audience(None, listens, warns), until, data)


def _simulate(
    experiment: Experiment, out: str | Path | None, audience: "Audience", until: float | None, data: Any
) -> Result:
    experiment, given = with_given(experiment, data)
    with one_thread(), open_executor(experiment, audience.warn) as workers:
        parts = assemble(experiment, given)
        announce(parts.method, audience.warn)
        begins = {} if out is None else origin(experiment, parts.task.dataset)  # before the workers get the samples
        executor = workers.for_task(parts.task)
        folder = None if out is None else _new_folder(Path(out), parts, begins)
        try:
            return carry_out(parts, executor, replace(audience, folder=folder), until=until)
        except UserError:
            if folder is not None:
                remove_unbegun(folder.path)
            raise


def _new_folder(out: Path, parts: SimulationParts, begins: dict[str, Any]) -> RunFolder:
    """The folder of a new run; ``begins`` is its `origin`."""
    toml = experiment_toml(with_absolute_paths(parts.experiment), make_method(parts.experiment).parameters)
    about = environment(VirtualEngine.clock, parts.task.goal.metrics[0].info) | begins
    return RunFolder.create(out, toml, about, parts.task.spec.model_dump_json(indent=2))


def resume(
    path: str | Path,
    listener: Listener | None = None,
    warn: Warn | None = None,
    settings: Sequence[str] = (),
    until: float | None = None,
    data: Any = None,
) -> Result | None:
    """Continues an interrupted simulation in its folder, or extends a finished one. The result equals that of an
    uninterrupted run, byte for byte.

    Args:
        path: The run folder.
        listener: See `simulate`.
        warn: See `simulate`.
        settings: How to carry out the rest (``run.workers=4``), when it ends (``run.virtual_time=24000``), and where
            files are that were moved (``data.root=...``, ``model.weights=...``); other settings are refused.
        until: See `simulate`. A run that is past this time already stops at once.
        data: The same samples again, if they were handed in to `simulate`; others are refused.

    Returns:
        The result of the whole run, or None if the run was complete already and the settings do not extend it.

    Raises:
        UserError: If the folder holds no simulation that can be continued, or another process is writing to it.
        RunStopped, Stopped, Paused: See `simulate`.
    """
    path = run_path(path)
    _check_until(until, path)
    check_simulation(path)
    experiment, given = with_given(changed_experiment(path, settings), data)
    extends = changes_length(load_experiment(path / EXPERIMENT), experiment) or goes_on(path, settings)
    if (path / SUMMARY).exists() and not extends:
        return None
    with closing(RunFolder.reopen(path)) as folder:
        if (path / SUMMARY).exists() and not extends:  # the process that held the lock has finished the run
            return None
        with attended(experiment, path, listener, warn) as (listens, warns):
            return _resumed(experiment, given, Audience(folder, listens, warns), extends, until)


def _resumed(
    experiment: Experiment, given: Dataset | None, audience: "Audience", extends: bool, until: float | None
) -> Result:
    """In the folder of the audience."""
    assert audience.folder is not None
    with one_thread(), open_executor(experiment, audience.warn) as workers:
        parts = assemble(without_start(experiment, audience.folder.path), given)
        checkpoint = prepare(experiment, parts, audience.folder, extends, until)
        return carry_out(parts, workers.for_task(parts.task), audience, checkpoint, until)


def prepare(
    experiment: Experiment, parts: SimulationParts, folder: RunFolder, extends: bool = False, until: float | None = None
) -> Checkpoint | None:
    """Makes the folder one that can be continued from the checkpoint it returns. Raises `UserError`, before anything
    is changed, if it cannot."""
    path = folder.path
    check_origin(path, parts.experiment, parts.task.dataset)
    checkpoint = load_checkpoint(path, experiment_text(path))
    rows = [] if checkpoint is None else folder.rows(checkpoint.positions[METRICS])
    if checkpoint is not None:
        folder.check(checkpoint.positions)
    if extends:
        check_extension(experiment, path, checkpoint, rows)
        reached = 0.0 if checkpoint is None else checkpoint.engine["now"]
        if until is not None and until <= reached and (path / SUMMARY).exists():
            raise UserError(f"until = {until:g}: the run is finished beyond that; accepted: a later time, or none")
    try:
        if extends or is_moved(experiment, path):
            extend(experiment, path)
        (path / REQUEST).unlink(missing_ok=True)
        folder.rewind(None if checkpoint is None else checkpoint.positions)
    except OSError as error:
        raise cannot_record(error, path) from error
    return checkpoint


def _check_arguments(experiment: object, out: object, until: float | None) -> None:
    if not isinstance(experiment, Experiment):
        raise UserError(f"experiment = {experiment!r:.80}: accepted: what load_experiment returns")
    if out is not None and not isinstance(out, str | Path):
        raise UserError(f"out = {out!r:.80}: accepted: the path of a folder, or None")
    _check_until(until, out)


def _check_until(until: float | None, out: str | Path | None) -> None:
    if until is None:
        return
    if not isinstance(until, Real) or not 0 < until < FOREVER:
        shown = f"{until:g}" if isinstance(until, Real) else f"{until!r:.80}"
        raise UserError(f"until = {shown}: accepted: a virtual time in seconds, above 0")
    if out is None:
        raise UserError(f"until = {until:g}: needs a run folder (out), which keeps the checkpoint")


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes with one thread, for the same bits everywhere; afterwards with as many as before."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def check_simulation(path: Path) -> None:
    """Raises `UserError` if the folder does not hold a simulation. Modules that it names are found from now on."""
    if not (path / EXPERIMENT).exists():
        raise UserError(f"{path}: not a run folder (it has no {EXPERIMENT})")
    if (path / JOURNAL).exists():
        raise UserError(
            f"{path}: a run on real devices; continue it with `cabafl deploy server` or `cabafl deploy local`, end it "
            "with `cabafl deploy stop`"
        )
    check_environment(path)
    find_modules(path)


def run_path(path: object) -> Path:
    """The path of a run folder, given from Python."""
    if isinstance(path, str | Path):
        return Path(path)
    raise UserError(f"path = {path!r:.80}: accepted: the path of a run folder")


def changed_experiment(path: Path, settings: Sequence[str], lengths: bool = True) -> Experiment:
    """The experiment of a run folder with ``settings`` that a run which has begun can still get."""
    if isinstance(settings, str) or not all(isinstance(text, str) for text in settings):
        raise UserError(f"settings = {settings!r:.80}: accepted: a list of section.key=value")
    keys = (*LENGTH_KEYS, *EXECUTION_KEYS) if lengths else ()
    accepted = [*(f"run.{key}" for key in keys), *PLACES]
    for text in settings:
        if text.partition("=")[0].strip() not in accepted:
            raise UserError(f"{text}: cannot be changed on a run that has begun; accepted: {', '.join(accepted)}")
    experiment = load_experiment(path / EXPERIMENT, settings)
    return with_absolute_paths(experiment) if is_moved(experiment, path) else experiment


class VirtualDriver:
    """The `Driver` of a simulation: every step handles one event of the engine's queue. It raises `Paused` instead of
    the first event after ``until``, unless the run ends before that anyway."""

    def __init__(self, engine: VirtualEngine, until: float | None = None) -> None:
        self.engine = engine
        self.step: Callable[[], bool] = engine.step
        self.state = engine.state
        if until is not None and until < engine.horizon:
            self.step = partial(self._step_until, until)

    def _step_until(self, until: float) -> bool:
        if self.engine.queue and self.engine.queue[0][0] > until:
            raise Paused(max(until, self.engine.now))
        return self.engine.step()

    def begin(self, state: dict[str, Any] | None) -> None:
        """Starts at time 0 or at the time of the checkpoint."""
        if state is None:
            self.engine.start()
        else:
            self.engine.restore(state)

    def saved(self, state: dict[str, Any]) -> None:
        """Does nothing: only runs on real devices have a journal to shorten."""

    def end(self) -> None:
        """Stops the clock where it is."""
        self.step = lambda: False

    def wake(self) -> None:
        """Does nothing: an executor that waits calls `Lifecycle.check_stop` every half second."""


@dataclass(frozen=True)
class Audience:
    """Who hears of a run: its folder, a listener to its events, and whoever reads warnings."""

    folder: RunFolder | None = None
    listener: Listener | None = None
    warn: Warn | None = None


def carry_out(
    parts: SimulationParts,
    executor: Executor,
    audience: Audience,
    checkpoint: Checkpoint | None = None,
    until: float | None = None,
    end: Reason | None = None,
) -> Result:
    """Runs assembled parts, from the beginning or a checkpoint. ``end``: to where that is and no further."""
    model, folder = parts.task.model, audience.folder
    run = Lifecycle(parts.experiment, model.layout, folder, audience.listener, audience.warn)
    run.ending.reason = end
    engine = make_engine(parts, executor, run.emit, run.check_stop)
    try:
        # a model that grows without bound is rejected for it
        with blaming(own_code(parts.experiment)), np.errstate(over="ignore", invalid="ignore"):
            summary = run.carry_out(VirtualDriver(engine, until), checkpoint)
    finally:
        if folder is not None:
            folder.close()
    model.load(engine.result)
    where = None if folder is None else folder.path
    return Result(summary, model.network.eval(), where, tuple(run.rows))


def make_engine(
    parts: SimulationParts, executor: Executor, emit: Listener, interrupt: Interrupt | None = None
) -> VirtualEngine:
    """The engine for assembled parts."""
    setup = engine_setup(parts, executor, emit, parts.experiment.run.virtual_time)
    return VirtualEngine(setup, parts.fleet, parts.faults, interrupt)
