"""A logger of one's own: the figures of a run as lines of JSON, and the best accuracy at the end."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cabafl import LoggedRun, Logger


class JsonLines(Logger):
    """Writes ``figures.jsonl`` into the run folder."""

    def begin(self, run: LoggedRun) -> int:
        """Opens the file. A run that goes on after a stop writes it anew: 0 asks for all evaluations once more."""
        folder = run.folder or Path()
        self._file = (folder / "figures.jsonl").open("w", encoding="utf-8")
        return 0

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Writes one evaluation."""
        self._write({"step": step, **figures})

    def finish(self, summary: Mapping[str, Any], model: Path | None) -> None:
        """Writes what came out in the end."""
        self._write({"best": summary["best_accuracy"], "model": str(model)})

    def close(self) -> None:
        """Closes the file; also after a stop, when `finish` was not called."""
        self._file.close()

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()
