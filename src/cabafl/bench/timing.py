"""Comparable timings: taken in turns, so that other load on the machine affects all of them."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of repeated measurements."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Raises `statistics.StatisticsError` if there are no values."""
        return cls(statistics.median(values), min(values), max(values))

    def figures(self) -> dict[str, float]:
        """The fields as a dictionary, for JSON."""
        return asdict(self)

    def text(self, digits: int = 3) -> str:
        """``median (lowest to highest)``, with ``digits`` decimals."""
        return f"{self.median:,.{digits}f} ({self.lowest:,.{digits}f} to {self.highest:,.{digits}f})"


def seconds(function: Callable[[], Any]) -> float:
    """Wall seconds of one call."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def in_turns(functions: Mapping[str, Callable[[], float]], repetitions: int) -> dict[str, list[float]]:
    """Calls the functions in turns (A, B, A, B, ...); entry i of each list comes from turn i."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repetitions):
        for name, function in functions.items():
            taken[name].append(function())
    return taken


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Ratios per turn, which cancels slow changes of the machine's speed."""
    return Spread.of([a / b for a, b in zip(above, below, strict=True)])
