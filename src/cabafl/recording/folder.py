"""The run folder: the experiment, the events as they happen and the results.

``summary.json`` is written last: a run without it is not finished.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cabafl.errors import RunStopped, UserError
from cabafl.files import as_json, cannot_record, lock, write_atomic
from cabafl.recording.events import Evaluated, Event
from cabafl.recording.scale import MetricInfo, metric_info
from cabafl.recording.summary_file import encoded

if TYPE_CHECKING:  # who only reads a folder needs no torch
    from torch import Tensor

EVENTS = "events.jsonl"
METRICS = "metrics.csv"
MODEL = "model.safetensors"
RAW_MODEL = "model-raw.safetensors"  # the last published model, where `MODEL` is the average
BEST_MODEL = "model-best.safetensors"  # the best evaluated model, beside the last one
SUMMARY = "summary.json"
EXPERIMENT = "experiment.toml"
TASK = "task.json"  # what the network needs to be used: form of the inputs, classes, normalisation
ENVIRONMENT = "environment.json"
CURVE = "curve.png"
CHECKPOINT = "checkpoint.json"
JOURNAL = "journal"  # a folder; only in runs on real devices
PATIENCE = 20.0  # seconds to wait for another process to release the folder
_BUFFERED_EVENTS = 2000
_AT_START = b'{"time":0.0,'
_KINDS = (float, int, float, float, int, int, int, int, int, float)  # of the first columns; the others are floats


def _busy(path: Path) -> str:
    return f"{path}: another process writes this run; accepted: one at a time"


class RunFolder:
    """Records a run as it happens: a listener of the engine's events. Holds the folder's lock until it is closed."""

    def __init__(self, path: Path, events: IO[bytes], metrics: IO[bytes]) -> None:
        self.path = path
        self._events = events
        self._metrics = metrics
        self._lines: list[str] = []  # not yet written
        self._rows: list[str] = []

    @classmethod
    def create(
        cls, path: Path, experiment_toml: str, environment: Mapping[str, Any], task: str | None = None
    ) -> "RunFolder":
        """Creates the folder with the experiment and environment files, and the description of the task as JSON, if it
        is given. Raises `UserError` if the folder is not empty."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise UserError(f"--out = {path}: the folder is not empty; accepted: a new or empty folder")
            write_atomic(path / ENVIRONMENT, as_json(environment))
            if task is not None:
                write_atomic(path / TASK, f"{task}\n".encode())
            folder = cls(path, (path / EVENTS).open("xb"), (path / METRICS).open("xb"))
            lock(folder._events, _busy(path))  # before there is an experiment that another process could go on with
            write_atomic(path / EXPERIMENT, experiment_toml.encode())
        except OSError as error:
            if isinstance(error, FileExistsError) and path.is_dir():  # another process was quicker
                raise UserError(f"--out = {path}: the folder is not empty; accepted: a new or empty folder") from None
            for name in (ENVIRONMENT, TASK, EVENTS, METRICS):  # so that the same command can be tried again
                with contextlib.suppress(OSError):
                    (path / name).unlink(missing_ok=True)
            raise UserError(f"--out = {path}: cannot be written: {error.strerror}") from None
        return folder

    @classmethod
    def reopen(cls, path: Path, patience: float | None = None) -> "RunFolder":
        """Opens the folder of an interrupted run; call `rewind` next.

        Waits up to ``patience`` seconds (`PATIENCE`) for the lock: a process that was asked to stop may still be
        writing. Raises `Busy` if it still is.
        """
        with contextlib.ExitStack() as opened:
            try:
                events, metrics = (opened.enter_context((path / name).open("r+b")) for name in (EVENTS, METRICS))
            except OSError as error:
                raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from None
            lock(events, _busy(path), PATIENCE if patience is None else patience)
            opened.pop_all()
        for file in (events, metrics):
            file.seek(0, os.SEEK_END)  # the other process may have written before it released the lock
        return cls(path, events, metrics)

    def check(self, positions: Mapping[str, int]) -> None:
        """Raises `UserError` if a file is shorter than the ``positions`` of a checkpoint say."""
        for name, file in ((EVENTS, self._events), (METRICS, self._metrics)):
            if file.tell() < positions[name]:
                found = f"shorter than when the checkpoint was taken ({positions[name]} bytes)"
                raise UserError(f"{self.path / name}: {found}")

    def rewind(self, positions: Mapping[str, int] | None) -> None:
        """Truncates both files to the ``positions`` of a checkpoint; None truncates to the beginning."""
        files = {EVENTS: self._events, METRICS: self._metrics}
        ends = dict.fromkeys(files, 0) if positions is None else positions
        self.check(ends)  # both, before either is changed
        for name, file in files.items():
            file.truncate(ends[name])
            file.seek(ends[name])

    def __call__(self, event: Event) -> None:
        """Records one event. An evaluation also adds a row of metrics and flushes both files."""
        lines = self._lines
        lines.append(event.line())
        if type(event) is Evaluated:
            if not self._metrics.tell():
                self._rows.append(",".join(event.columns))
            self._rows.append(event.row())
            self.flush()
        elif len(lines) >= _BUFFERED_EVENTS:
            self.flush()

    def flush(self) -> None:
        """Writes what was recorded so far. Raises `RunStopped` if that fails."""
        try:
            for file, lines in ((self._events, self._lines), (self._metrics, self._rows)):
                if lines:
                    file.write(("\n".join(lines) + "\n").encode())
                    lines.clear()
                    file.flush()
        except OSError as error:
            raise cannot_record(error, self.path) from error

    def positions(self) -> dict[str, int]:
        """The lengths of both files in bytes, with everything recorded so far."""
        self.flush()
        for file in (self._events, self._metrics):
            file.flush()
        return {EVENTS: self._events.tell(), METRICS: self._metrics.tell()}

    def sync(self) -> None:
        """Returns when all `positions` taken so far are on disk; any thread may call it."""
        for file in (self._events, self._metrics):
            os.fsync(file.fileno())

    def rows(self, end: int | None = None) -> list[Evaluated]:
        """All evaluations so far, including those from before a resume; or those in the first ``end`` bytes."""
        self.flush()
        try:
            return _parsed((self.path / METRICS).read_bytes()[:end].decode(), read_metric(self.path))
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path}: not a readable run folder: {error}") from None

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Writes ``summary.json``, which marks the run as finished, and closes the folder."""
        self.positions()
        self.sync()
        write_atomic(self.path / SUMMARY, encoded(summary))  # before the lock is released: no process may resume it
        self.close()

    def close(self) -> None:
        """Syncs and closes the files; idempotent. On a full disk, which the run has already reported, writes what
        fits."""
        if self._events.closed:
            return
        with contextlib.suppress(RunStopped, OSError):
            self.positions()
            self.sync()
        for file in (self._events, self._metrics):
            with contextlib.suppress(OSError):
                file.close()


def remove_unbegun(path: Path) -> None:
    """Removes the folder of a run that failed at its start, at time 0 and without a checkpoint: after the mistake is
    mended, the same command can be given again. Files of others stay."""
    with contextlib.suppress(OSError):
        with (path / EVENTS).open("rb") as events:
            if (path / CHECKPOINT).exists() or not all(line.startswith(_AT_START) for line in events):
                return
        for name in (EXPERIMENT, ENVIRONMENT, TASK, EVENTS, METRICS, CURVE):
            (path / name).unlink(missing_ok=True)
        path.rmdir()


def read_metrics(path: Path) -> list[Evaluated]:
    """Reads ``metrics.csv``; the numbers are exactly those recorded."""
    return _parsed((path / METRICS).read_text(encoding="utf-8"), read_metric(path))


def complete_metrics(path: Path) -> list[Evaluated]:
    """As `read_metrics`, of a run that may have been killed in the middle of a line, which is left out."""
    text = (path / METRICS).read_text(encoding="utf-8")
    return _parsed(text[: text.rfind("\n") + 1], read_metric(path))


def read_metric(path: Path) -> MetricInfo:
    """The metric that a run is judged by, from its ``environment.json``; of older runs, the accuracy."""
    try:
        stored = json.loads((path / ENVIRONMENT).read_text(encoding="utf-8"))
        return metric_info(stored.get("metric") if isinstance(stored, dict) else None)
    except FileNotFoundError:
        return metric_info(None)
    except ValueError as error:
        raise ValueError(f"{ENVIRONMENT}: {error}") from None


def _parsed(text: str, metric: MetricInfo) -> list[Evaluated]:
    lines = text.splitlines()
    if not lines:
        return []
    columns = lines[0].split(",")
    if columns[2:4] != [metric.name, "loss"]:
        raise ValueError(f"{METRICS}: columns {lines[0]}; accepted: {metric.name} and loss after time and version")
    averaged = 2 if columns[len(_KINDS) : len(_KINDS) + 1] == [f"averaged_{metric.name}"] else 0
    rows = []
    for number, line in enumerate(lines[1:], 2):
        try:
            rows.append(_row(line.split(","), columns, len(_KINDS) + averaged, metric))
        except ValueError as error:
            raise ValueError(f"{METRICS}, line {number}: {error}") from None
    return rows


def _row(texts: list[str], columns: list[str], fixed: int, metric: MetricInfo) -> Evaluated:
    """The evaluation of one line, whose first ``fixed`` columns are fields of `Evaluated`."""
    kinds = [*_KINDS, *[float] * (len(columns) - len(_KINDS))]
    numbers: list[Any] = [kind(text) for kind, text in zip(kinds, texts, strict=True)]
    averaged = numbers[len(_KINDS) : fixed] or [None, None]
    more = tuple(zip(columns[fixed:], numbers[fixed:], strict=True))
    return Evaluated._make([*numbers[: len(_KINDS)], *averaged, more, metric])


def save_model(path: Path, tensors: "Mapping[str, Tensor]") -> None:
    """Writes a model in safetensors format, atomically."""
    from safetensors.torch import save

    write_atomic(path, save(dict(tensors)))
