"""The run folder: what was asked, what happened, what came out.

``summary.json`` is written last: a folder without it is not a finished run.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from safetensors.torch import save
from torch import Tensor

from cabafl.errors import RunStopped, UserError
from cabafl.files import as_json, cannot_record, lock, write_atomic
from cabafl.recording.events import Evaluated, Event

EVENTS = "events.jsonl"
METRICS = "metrics.csv"
MODEL = "model.safetensors"
SUMMARY = "summary.json"
EXPERIMENT = "experiment.toml"
ENVIRONMENT = "environment.json"
CURVE = "curve.png"
CHECKPOINT = "checkpoint.json"
JOURNAL = "journal"  # a folder; of a run on real devices only
PATIENCE = 20.0  # seconds until a folder that another process writes is given up
_LINES = 2000  # events kept before they are written
_HEADER = (",".join(Evaluated._fields) + "\n").encode()


def _busy(path: Path) -> str:
    return f"{path}: another process writes this run; accepted: one at a time"


class RunFolder:
    """Writes one run as it happens; a listener of the engine's event stream."""

    def __init__(self, path: Path, events: IO[bytes], metrics: IO[bytes]) -> None:
        self.path = path
        self._events = events
        self._metrics = metrics
        self._lines: list[str] = []  # not yet written
        self._rows: list[str] = []

    @classmethod
    def create(cls, path: Path, experiment_toml: str, environment: Mapping[str, Any]) -> "RunFolder":
        """A new folder that says what was asked; refuses a folder that is not empty."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise UserError(f"--out = {path}: the folder is not empty; accepted: a new or empty folder")
            write_atomic(path / ENVIRONMENT, as_json(environment))
            write_atomic(path / EXPERIMENT, experiment_toml.encode())
            folder = cls(path, (path / EVENTS).open("xb"), (path / METRICS).open("xb"))
            lock(folder._events, _busy(path))
            folder._metrics.write(_HEADER)
        except OSError as error:
            raise UserError(f"--out = {path}: cannot be written: {error.strerror}") from None
        return folder

    @classmethod
    def reopen(cls, path: Path) -> "RunFolder":
        """An interrupted run's folder, once nobody else writes it: a process that was told to stop may need a while.
        To be cut back with `rewind`."""
        with contextlib.ExitStack() as opened:
            try:
                events, metrics = (opened.enter_context((path / name).open("ab")) for name in (EVENTS, METRICS))
            except OSError as error:
                raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from None
            lock(events, _busy(path), PATIENCE)
            opened.pop_all()
        for file in (events, metrics):
            file.seek(0, os.SEEK_END)  # the other process may have written meanwhile
        return cls(path, events, metrics)

    def rewind(self, positions: Mapping[str, int] | None) -> None:
        """Cuts the record back to where a checkpoint was taken (None: to the beginning)."""
        files = {EVENTS: self._events, METRICS: self._metrics}
        ends = dict.fromkeys(files, 0) if positions is None else positions
        for name, file in files.items():  # both, before anything is changed
            if file.tell() < ends[name]:
                raise UserError(f"{self.path / name}: shorter than when the checkpoint was taken ({ends[name]} bytes)")
        for name, file in files.items():
            file.truncate(ends[name])
            file.seek(ends[name])
        if positions is None:
            self._metrics.write(_HEADER)

    def __call__(self, event: Event) -> None:
        """Appends one event; an evaluation also makes a row of metrics and flushes both files."""
        lines = self._lines
        lines.append(event.line())
        if type(event) is Evaluated:
            self._rows.append(event.row())
            self._write()
        elif len(lines) >= _LINES:
            self._write()

    def _write(self) -> None:
        """Hands everything recorded so far to the operating system."""
        try:
            for file, lines in ((self._events, self._lines), (self._metrics, self._rows)):
                if lines:
                    file.write(("\n".join(lines) + "\n").encode())
                    lines.clear()
                    file.flush()
        except OSError as error:
            raise cannot_record(error, self.path) from error

    def positions(self) -> dict[str, int]:
        """How long the record is, everything of it being on disk."""
        self._write()
        for file in (self._events, self._metrics):
            os.fsync(file.fileno())
        return {EVENTS: self._events.tell(), METRICS: self._metrics.tell()}

    def rows(self) -> list[Evaluated]:
        """The evaluations recorded so far."""
        self._write()
        return read_metrics(self.path)

    def save_model(self, tensors: Mapping[str, Tensor]) -> None:
        """Named tensors of the last global model."""
        write_atomic(self.path / MODEL, save(dict(tensors)))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The mark of a complete run."""
        self.positions()
        write_atomic(self.path / SUMMARY, as_json(summary))  # while nobody else can take the run for an interrupted one
        self.close()

    def close(self) -> None:
        """Everything recorded so far is on disk and readable; on a full disk, of which the run has told already, what
        fits is."""
        if self._events.closed:
            return
        with contextlib.suppress(RunStopped, OSError):
            self.positions()
        for file in (self._events, self._metrics):
            with contextlib.suppress(OSError):
                file.close()


def read_metrics(path: Path) -> list[Evaluated]:
    """The rows of a run's ``metrics.csv``, to the last bit."""
    lines = (path / METRICS).read_text(encoding="utf-8").splitlines()[1:]
    kinds = Evaluated.__annotations__.values()
    return [Evaluated(*(kind(text) for kind, text in zip(kinds, line.split(","), strict=True))) for line in lines]
