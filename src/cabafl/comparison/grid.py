"""A grid of runs, every variant with every seed: checks the folders, skips finished runs, uses all cores."""

import contextlib
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cabafl.checked import make_method
from cabafl.config import EXECUTION_KEYS, Experiment, load_experiment
from cabafl.errors import UserError
from cabafl.files import lock
from cabafl.lifecycle.origin import with_absolute_paths
from cabafl.processes.lifeline import PARENT
from cabafl.recording.folder import ENVIRONMENT, EVENTS, EXPERIMENT, METRICS, SUMMARY, TASK
from cabafl.toml import experiment_toml

LOCK = ".lock"


@dataclass
class GridRun:
    """One run of the grid, in its own process."""

    label: str
    seed: int
    experiment: Experiment
    folder: Path
    failure: str | None = None
    process: "subprocess.Popen[bytes] | None" = None
    cores: int = 1  # assigned to it; more than one: worker processes
    log: Path = field(default_factory=Path)  # output of the process
    until: float | None = None  # virtual time at which it stops with a checkpoint; None: it runs to its end
    processor_seconds: float = 0.0  # of its process, once that has ended

    @property
    def done(self) -> bool:
        """Whether the folder holds a finished run."""
        return (self.folder / SUMMARY).exists()

    def running(self) -> bool:
        """Whether it has a process that has not ended. When it ends, its processor time is known."""
        if self.process is None or self.process.returncode is not None:
            return False
        before = _children_seconds()  # all those that were waited for; `poll` adds this one
        if self.process.poll() is None:
            return True
        self.processor_seconds = _children_seconds() - before
        return False

    def stop(self) -> None:
        """Asks the process to stop with a checkpoint."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)  # `Popen.send_signal` polls, which loses the processor time

    @property
    def stopped(self) -> bool:
        """Whether its process has ended because it was asked to, before or after it could save a checkpoint."""
        asked = (signal.SIGINT, signal.SIGTERM)
        codes = [code for number in asked for code in (128 + number, -number)]
        return self.process is not None and self.process.returncode in codes

    def progress(self) -> float:
        """Recorded share of the virtual time, 0 to 1."""
        if self.done:
            return 1.0
        try:
            last = (self.folder / METRICS).read_bytes().splitlines()[-1]
            reached, total = float(last.split(b",")[0]), self.experiment.run.virtual_time
            return reached / total if total else 0.0
        except (OSError, ValueError, IndexError):
            return 0.0


class GridCase(NamedTuple):
    """What is run with every seed; ``name`` is the beginning of the folder's name."""

    label: str
    name: str
    experiment: Experiment


def make_grid(
    base: Experiment, variants: Mapping[str, Mapping[str, Any]], seeds: Sequence[int], out: Path
) -> list[GridRun]:
    """Returns a run for every variant (label -> keys of ``[method]``) and seed. Raises `UserError` for an invalid key.

    Runs with the same seed share everything but the method: partition, initial weights, device speeds, shuffles and
    evaluation times.
    """
    cases = []
    for label, keys in variants.items():
        experiment = base.model_copy(update={"method": type(base.method)(**keys)})
        make_method(experiment)  # finds an invalid key before anything starts
        cases.append(GridCase(label, label, experiment))
    return make_runs(cases, seeds, out)


def make_runs(cases: Sequence[GridCase], seeds: Sequence[int], out: Path) -> list[GridRun]:
    """Returns a run for every seed and case, all cases of a seed together; raises `UserError` for a foreign folder."""
    runs = []
    for seed in seeds:
        for case in cases:
            experiment = case.experiment.model_copy(update={"seed": seed})
            runs.append(GridRun(case.label, seed, experiment, out / "runs" / f"{case.name}-seed{seed}"))
    for run in runs:
        check_folder(run)
    return runs


def check_folder(run: GridRun) -> None:
    """Raises `UserError` unless the folder is empty or holds the same run from an earlier call."""
    path = run.folder / EXPERIMENT
    if path.exists() and result_settings(load_experiment(path)) != result_settings(run.experiment):
        raise UserError(f"{run.folder}: holds a run with other settings; choose another --out or remove the folder")
    if not path.exists() and run.folder.exists() and not _just_begun(run.folder):
        raise UserError(f"{run.folder}: is not a run folder; choose another --out or remove the folder")


def _just_begun(folder: Path) -> bool:
    """Whether a run was killed while it created its folder, before there was an experiment in it."""
    names = (ENVIRONMENT, TASK, EVENTS, METRICS, *(f".{name}.part" for name in (ENVIRONMENT, TASK, EXPERIMENT)))
    return not (folder / EXPERIMENT).exists() and all(path.name in names for path in folder.iterdir())


def result_settings(experiment: Experiment) -> str:
    """The settings that determine the results, as TOML: all but `EXECUTION_KEYS`."""
    experiment = with_absolute_paths(experiment)
    section = experiment.run.model_copy(update=dict.fromkeys(EXECUTION_KEYS))
    parameters = make_method(experiment).parameters
    return experiment_toml(experiment.model_copy(update={"run": section}), parameters)


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Creates and locks the folder of a comparison; raises `UserError` if another comparison holds the lock."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / LOCK).open("ab")
    except OSError as error:
        raise UserError(f"--out = {out}: cannot be written: {error.strerror}") from None
    with file:
        lock(file, f"--out = {out}: another comparison is writing here; accepted: a folder that is not in use")
        yield


class RunSource(Protocol):
    """Says which runs to carry out, one after the other."""

    def take(self, free: int) -> GridRun | None:
        """The next run, with ``cores`` of the ``free`` ones; None if there is nothing to start at the moment."""

    def ended(self, run: GridRun) -> None:
        """The process of a run has ended."""

    def poll(self) -> bool:
        """Called five times a second; True: all running ones shall stop now."""


class _Grid:
    """The unfinished runs of a grid, in their order. Each gets one core, or several if fewer runs than cores are
    left to start."""

    def __init__(self, runs: Sequence[GridRun], poll: Callable[[Sequence[GridRun]], None]) -> None:
        self._runs, self._poll = runs, poll
        self._pending = [run for run in runs if not run.done]

    def take(self, free: int) -> GridRun | None:
        if not self._pending:
            return None
        run = self._pending.pop(0)
        run.cores = math.ceil(free / (len(self._pending) + 1))
        return run

    def ended(self, run: GridRun) -> None:
        pass

    def poll(self) -> bool:
        self._poll(self._runs)
        return False


def run_grid(runs: Sequence[GridRun], jobs: int, poll: Callable[[Sequence[GridRun]], None]) -> None:
    """Executes the unfinished runs on ``jobs`` cores. A run that fails gets its ``failure``; the others continue.

    ``poll`` is called five times a second. Ctrl-C and SIGTERM stop all runs, each with a checkpoint, and raise
    `KeyboardInterrupt`.
    """
    run_source(_Grid(runs, poll), jobs)


def run_source(source: RunSource, jobs: int) -> None:
    """Executes the runs of a source on ``jobs`` cores until it has none left; see `run_grid`."""
    running: list[GridRun] = []
    asked = False  # a second signal would stop a run without a checkpoint
    with _forwarded_signals(running) as stopped:
        while True:
            while not stopped() and not asked and (free := jobs - sum(run.cores for run in running)) > 0:
                run = source.take(free)
                if run is None:
                    break
                _start(run)
                running.append(run)
            if not running:
                break
            time.sleep(0.2)
            for run in [run for run in running if not run.running()]:
                running.remove(run)
                _end(run)
                source.ended(run)
            if source.poll() and not asked and not stopped():
                asked = True
                for run in running:
                    run.stop()
        if stopped():
            raise KeyboardInterrupt


def _children_seconds() -> float:
    """Processor seconds of all child processes that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _start(run: GridRun) -> None:
    # With Ray, run.workers is the number of actors on the user's cluster, so it is left as it is.
    workers = [] if run.experiment.run.executor == "ray" else [f"run.workers={0 if run.cores == 1 else run.cores}"]
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    run.log = _beside(run.folder, ".log")
    command = [sys.executable, "-P", "-m", "cabafl"]
    if (run.folder / EXPERIMENT).exists():
        command += ["resume", str(run.folder), *workers]
    else:
        parameters = make_method(run.experiment).parameters
        file = _beside(run.folder, ".toml")
        if run.folder.exists() and _just_begun(run.folder):
            shutil.rmtree(run.folder)
        file.write_text(experiment_toml(run.experiment, parameters), encoding="utf-8")
        command += ["run", str(file), *workers, "--out", str(run.folder)]
    command += [] if run.until is None else ["--until", repr(run.until)]
    environment = {**os.environ, PARENT: str(os.getpid()), "OMP_NUM_THREADS": "1"}
    with run.log.open("wb") as log:
        run.process = subprocess.Popen(
            [*command, "--quiet"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,  # the terminal's Ctrl-C does not reach the run; the comparison forwards it once. Not a new
            # session: Linux may weigh priorities within a session only, and `nice cabafl compare` would be in vain
        )


def _beside(folder: Path, suffix: str) -> Path:
    """A file next to the folder. Not `Path.with_suffix`: the folder's name may have dots, as in ``beta0.1-seed1``."""
    return folder.parent / f"{folder.name}{suffix}"


def _end(run: GridRun) -> None:
    assert run.process is not None
    code = run.process.returncode
    if code == 0:
        run.log.unlink(missing_ok=True)
        _beside(run.folder, ".toml").unlink(missing_ok=True)
    elif run.stopped:
        run.failure = "stopped by a signal; the same command continues it"
    else:
        lines = run.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        run.failure = lines[-1] if lines else f"exit code {code}"


@contextmanager
def _forwarded_signals(running: Sequence[GridRun]) -> Iterator[Callable[[], bool]]:
    """Forwards SIGINT and SIGTERM to the running processes as SIGTERM; yields a function that says whether one came.
    No effect outside the main thread."""
    received: list[int] = []

    def stop(number: int, _frame: object) -> None:
        received.append(number)
        for run in running:
            run.stop()

    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
