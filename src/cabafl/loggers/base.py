"""The contract of a logger: what a class named in ``run.log`` implements."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cabafl.toml import flatten


@dataclass(frozen=True)
class LoggedRun:
    """What a logger knows of its run."""

    name: str
    """The name of the run folder; without one, method and seed."""

    folder: Path | None
    """The run folder; None if nothing is written."""

    settings: Mapping[str, Any]
    """Every setting of the experiment by its dotted key (``data.beta``), defaults included."""

    clock: str
    """The clock of ``time``: ``virtual`` or ``wall``."""

    started: float
    """When the run began, in seconds since 1970; the same after a resume."""


class Logger:
    """Base class of loggers, which get the figures of a run while it goes on.

    A subclass implements `log`, and may override the rest. All methods are called by one thread of the logger's own,
    one after the other; they may take their time. A logger that raises is closed, the run warns once and goes on.
    """

    def begin(self, run: LoggedRun) -> int:
        """The run begins, or goes on in a new process after a stop or a kill.

        Returns:
            How many evaluations this logger has already, from before; the run logs those that follow. 0: none, so
            that a run that goes on logs all of them once more, from the first.
        """
        return 0

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Takes one evaluation.

        Args:
            step: Its number, from 0: its row of ``metrics.csv``. Every step comes once and in order.
            figures: The columns of that row, ``time`` included.
        """
        raise NotImplementedError

    def finish(self, summary: Mapping[str, Any], model: Path | None) -> None:
        """The run is complete.

        Args:
            summary: The content of ``summary.json``.
            model: The file ``model.safetensors``; None if nothing is written.
        """

    def close(self) -> None:
        """No more calls follow: the run is complete, was stopped, or this logger has raised."""


SETTINGS = "settings.toml"  # a copy of experiment.toml; by that name, it would make a run folder of the logger's


def final_figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a summary by dotted key (``losses.crash``), without those that are not finite."""
    numbers = {
        key: value
        for key, value in flatten(summary).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {key: float(value) for key, value in numbers.items() if math.isfinite(value)}


def as_text(value: Any) -> str:
    """A setting as loggers show it; one that is not set is ``none``."""
    return "none" if value is None else str(value)
