"""The run folder: what was asked, what happened, what came out.

``summary.json`` is written last: a folder without it is not a finished run.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt
from safetensors.torch import save
from torch import Tensor

from cabafl.errors import UserError
from cabafl.recording.events import Evaluated, Event

EVENTS = "events.jsonl"
METRICS = "metrics.csv"
MODEL = "model.safetensors"
SUMMARY = "summary.json"
EXPERIMENT = "experiment.toml"
ENVIRONMENT = "environment.json"
CURVE = "curve.png"


def write_atomic(path: Path, content: bytes) -> None:
    """The file is either complete or as it was before."""
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def as_json(value: Mapping[str, Any]) -> bytes:
    """Readable JSON with a final newline."""
    return (json.dumps(value, indent=2) + "\n").encode()


class RunFolder:
    """Writes one run as it happens; a listener of the engine's event stream."""

    def __init__(self, path: Path) -> None:
        """Makes the folder; one that holds anything already is refused, so that no result is overwritten."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise UserError(f"--out = {path}: the folder is not empty; accepted: a new or empty folder")
            self._events: TextIO = (path / EVENTS).open("x", encoding="utf-8", buffering=1 << 18)
            self._metrics: TextIO = (path / METRICS).open("x", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--out = {path}: cannot be written: {error.strerror}") from None
        self._metrics.write(",".join(Evaluated._fields) + "\n")

    def describe(self, experiment_toml: str, environment: Mapping[str, Any]) -> None:
        """What was asked, before anything happens."""
        write_atomic(self.path / EXPERIMENT, experiment_toml.encode())
        write_atomic(self.path / ENVIRONMENT, as_json(environment))

    def __call__(self, event: Event) -> None:
        """Appends one event; an evaluation also makes a row of metrics and flushes both files."""
        self._events.write(event.line() + "\n")
        if isinstance(event, Evaluated):
            self._metrics.write(event.row() + "\n")
            self._metrics.flush()
            self._events.flush()

    def save_model(self, tensors: Mapping[str, Tensor]) -> None:
        """Named tensors of the last global model."""
        write_atomic(self.path / MODEL, save(dict(tensors)))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The mark of a complete run."""
        self.close()
        write_atomic(self.path / SUMMARY, as_json(summary))

    def close(self) -> None:
        """Everything recorded so far is on disk and readable."""
        for file in (self._events, self._metrics):
            if not file.closed:
                file.flush()
                os.fsync(file.fileno())
                file.close()


def summarise(
    rows: list[Evaluated],
    selections: npt.NDArray[np.int64],
    losses: Mapping[str, int],
    staleness: Mapping[int, int],
) -> dict[str, Any]:
    """Everything of ``summary.json`` that does not depend on the machine."""
    from cabafl.recording.metrics import WINDOW, best_window_mean, fairness, stability

    accuracy = [row.accuracy for row in rows]
    best = best_window_mean(accuracy)
    last = rows[-1]
    uploads = sum(staleness.values())
    return {
        "best_window_mean": best[0] if best else None,
        "best_window_deviation": best[1] if best else None,
        "window": WINDOW,
        "best_accuracy": max(accuracy),
        "final_accuracy": last.accuracy,
        "final_loss": last.loss,
        "stability": stability(accuracy),
        "fairness": fairness(selections.tolist()),
        "evaluations": len(rows),
        "virtual_time": last.virtual_time,
        "aggregations": last.version,
        "downloads": last.downloads,
        "uploads": last.uploads,
        "feature_downloads": last.feature_downloads,
        "transfers": last.transfers,
        "bytes": last.bytes,
        "joules": last.joules,
        "losses": dict(sorted(losses.items())),
        "mean_staleness": sum(s * n for s, n in staleness.items()) / uploads if uploads else None,
        "max_staleness": max(staleness, default=None),
    }
