"""A grid of runs: what is to be done, what is done already, and doing it on all cores."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cabafl.assembly import make_method
from cabafl.config import EXECUTION_KEYS, Experiment, load_experiment
from cabafl.errors import UserError
from cabafl.files import lock
from cabafl.recording.folder import EXPERIMENT, METRICS, SUMMARY
from cabafl.toml import experiment_toml

PARENT = "CABAFL_PARENT"  # tells a run which process it belongs to
LOCK = ".lock"


@dataclass
class GridRun:
    """One run of the grid."""

    label: str
    seed: int
    experiment: Experiment
    folder: Path
    failure: str | None = None
    process: "subprocess.Popen[bytes] | None" = None
    cores: int = 1  # it was given
    errors: Path = field(default_factory=Path)

    @property
    def done(self) -> bool:
        """Whether its folder holds a finished run."""
        return (self.folder / SUMMARY).exists()

    def progress(self) -> float:
        """Share of its virtual time that is recorded, 0 to 1."""
        if self.done:
            return 1.0
        try:
            last = (self.folder / METRICS).read_bytes().splitlines()[-1]
            reached, total = float(last.split(b",")[0]), self.experiment.run.virtual_time
            return reached / total if total else 0.0
        except (OSError, ValueError, IndexError):
            return 0.0


def make_grid(
    base: Experiment, variants: Mapping[str, Mapping[str, Any]], seeds: Sequence[int], out: Path
) -> list[GridRun]:
    """Every variant (label -> keys of ``[method]``) with every seed. All else is equal: the same seed gives the same
    partition, initial weights, device speeds, shuffles and evaluation instants."""
    cells = []
    for seed in seeds:
        for label, keys in variants.items():
            experiment = base.model_copy(update={"seed": seed, "method": type(base.method)(**keys)})
            make_method(experiment)  # a wrong key ends the comparison before it starts
            cells.append(GridRun(label, seed, experiment, out / "runs" / f"{label}-seed{seed}"))
    for cell in cells:
        _check_belongs(cell)
    return cells


def _check_belongs(cell: GridRun) -> None:
    """A folder left by an earlier call must hold this very run."""
    path = cell.folder / EXPERIMENT
    if path.exists() and _essence(load_experiment(path)) != _essence(cell.experiment):
        raise UserError(f"{cell.folder}: holds a run with other settings; give another --out or remove it")
    if not path.exists() and cell.folder.exists() and any(cell.folder.iterdir()):
        raise UserError(f"{cell.folder}: holds something that is not a run; give another --out or remove it")


def _essence(experiment: Experiment) -> str:
    """What determines a run's bytes."""
    run = experiment.run.model_copy(update=dict.fromkeys(EXECUTION_KEYS))
    parameters = make_method(experiment).parameters
    return experiment_toml(experiment.model_copy(update={"run": run}), parameters)


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """The folder is this comparison's alone: a second one would do the same runs."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / LOCK).open("ab")
    except OSError as error:
        raise UserError(f"--out = {out}: cannot be written: {error.strerror}") from None
    with file:
        lock(file, f"--out = {out}: another comparison is at work there; accepted: one at a time, or another folder")
        yield


def run_grid(cells: Sequence[GridRun], jobs: int, tick: Callable[[Sequence[GridRun]], None]) -> None:
    """Carries out what is not done, ``jobs`` runs at a time; a run that fails is noted and the others go on.

    When fewer runs than ``jobs`` are left to start, they get several worker processes each instead.
    """
    pending = [cell for cell in cells if not cell.done]
    running: list[GridRun] = []
    with _forwarded_signals(running) as stopped:
        while (pending and not stopped()) or running:
            while pending and (free := jobs - sum(cell.cores for cell in running)) > 0 and not stopped():
                cell = pending.pop(0)
                cell.cores = math.ceil(free / (len(pending) + 1))
                _start(cell)
                running.append(cell)
            time.sleep(0.2)
            for cell in [c for c in running if c.process is not None and c.process.poll() is not None]:
                running.remove(cell)
                _end(cell)
            tick(cells)
        if stopped():
            raise KeyboardInterrupt


def _start(cell: GridRun) -> None:
    # How many actors a Ray cluster has is the user's business.
    workers = [] if cell.experiment.run.executor == "ray" else [f"run.workers={0 if cell.cores == 1 else cell.cores}"]
    cell.folder.parent.mkdir(parents=True, exist_ok=True)
    cell.errors = cell.folder.with_suffix(".log")
    command = [sys.executable, "-m", "cabafl"]
    if (cell.folder / EXPERIMENT).exists():
        command += ["resume", str(cell.folder), *workers]
    else:
        parameters = make_method(cell.experiment).parameters
        file = cell.folder.with_suffix(".toml")
        file.write_text(experiment_toml(cell.experiment, parameters), encoding="utf-8")
        command += ["run", str(file), *workers, "--out", str(cell.folder)]
    environment = {**os.environ, PARENT: str(os.getpid()), "OMP_NUM_THREADS": "1"}
    with cell.errors.open("wb") as log:
        cell.process = subprocess.Popen(
            [*command, "--quiet"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches it through the comparison only, as one signal
        )


def _end(cell: GridRun) -> None:
    assert cell.process is not None
    code = cell.process.returncode
    if code == 0:
        cell.errors.unlink(missing_ok=True)
        cell.folder.with_suffix(".toml").unlink(missing_ok=True)
    elif code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        cell.failure = "stopped from outside; the same command continues it"
    else:
        lines = cell.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        cell.failure = lines[-1] if lines else f"exit code {code}"


@contextmanager
def _forwarded_signals(running: Sequence[GridRun]) -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM stop all runs, each with a checkpoint."""
    asked: list[int] = []

    def stop(number: int, _frame: object) -> None:
        asked.append(number)
        for cell in running:
            if cell.process is not None and cell.process.poll() is None:
                cell.process.send_signal(signal.SIGTERM)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
