"""Times that can be compared: taken in turns, so that a noisy machine is noisy to all of them."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Spread:
    """The median of some values with their extremes."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """At least one value is needed."""
        return cls(statistics.median(values), min(values), max(values))

    def figures(self) -> dict[str, float]:
        """As JSON takes it."""
        return asdict(self)

    def text(self, digits: int = 3) -> str:
        """Median (lowest to highest)."""
        return f"{self.median:,.{digits}f} ({self.lowest:,.{digits}f} to {self.highest:,.{digits}f})"


def seconds(function: Callable[[], Any]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def in_turns(functions: Mapping[str, Callable[[], float]], repetitions: int) -> dict[str, list[float]]:
    """What each function measures, A, B, A, B, ...: entry i of all lists was taken in the same turn."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repetitions):
        for name, function in functions.items():
            taken[name].append(function())
    return taken


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Quotients turn by turn, which cancels slow drifts of the machine."""
    return Spread.of([a / b for a, b in zip(above, below, strict=True)])
