"""Learning curves: smoothed over evaluations, then over seeds, over time, transfers or energy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cabafl.recording.metrics import WINDOW
from cabafl.reporting.measures import COSTS
from cabafl.reporting.runs import Run, clock_of

Floats = npt.NDArray[np.float64]
MOST_POINTS = 500  # more than a screen shows
AXES = ("time", "transfers", "joules")
SCALE = {"time": 1.0, "transfers": 1.0, "joules": 1e-3}


def axis_names(runs: Sequence[Run]) -> dict[str, str]:
    """What stands below each kind of curve."""
    return {
        "time": f"{clock_of(runs)} [s]",
        "transfers": "models transferred",
        "joules": "energy of the devices [kJ]",
    }


@dataclass(frozen=True)
class Series:
    """Accuracy in percent: mean over seeds of the moving mean, and its lowest and highest seed."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    seeds: int


def series(group: Sequence[Run], axis: str) -> Series:
    """The runs of one method, as far as all of its seeds go."""
    curves = [_curve(run, axis) for run in group]
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[(grid >= start) & (grid <= end)]
    if len(grid) > MOST_POINTS:
        grid = np.linspace(start, end, MOST_POINTS)
    if len(grid) == 0:  # seeds that have no stretch in common
        grid = np.array([start])
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    return Series(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0), len(group))


def moving_mean(values: Floats, window: int = WINDOW) -> Floats:
    """Mean of the last ``window`` values, of all so far at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    last = np.arange(1, len(values) + 1)
    first = np.maximum(0, last - window)
    means: Floats = (sums[last] - sums[first]) / (last - first)
    return means


def _curve(run: Run, axis: str) -> tuple[Floats, Floats]:
    x = SCALE[axis] * np.array([COSTS[axis](row) for row in run.metrics], dtype=np.float64)
    y = moving_mean(100 * np.array([row.accuracy for row in run.metrics]))
    last = np.append(np.diff(x) > 0, True)  # several evaluations at one place: the latest
    return x[last], y[last]
