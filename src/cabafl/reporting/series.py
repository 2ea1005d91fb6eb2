"""Learning curves over time, transfers or energy: smoothed over versions, then averaged over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cabafl.recording.metrics import WINDOW, first_evaluations
from cabafl.reporting.measures import COSTS
from cabafl.reporting.runs import Run, clock_of

Floats = npt.NDArray[np.float64]
MAX_POINTS = 500  # more than a screen resolves
AXES = tuple(COSTS)
SCALE = {"time": 1.0, "transfers": 1.0, "joules": 1e-3}


def axis_names(runs: Sequence[Run]) -> dict[str, str]:
    """Axis -> label of the x axis."""
    return {
        "time": f"{clock_of(runs)} [s]",
        "transfers": "models transferred",
        "joules": "energy of the devices [kJ]",
    }


@dataclass(frozen=True)
class Series:
    """Moving mean of the metric, in the unit that is shown: mean, lowest and highest over the seeds."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    seeds: int


def series(group: Sequence[Run], axis: str) -> Series:
    """Averages the runs of one method over the range of ``axis`` that all seeds cover."""
    curves = [_curve(run, axis) for run in group]
    start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[(grid >= start) & (grid <= end)]
    if len(grid) > MAX_POINTS:
        grid = np.linspace(start, end, MAX_POINTS)
    if len(grid) == 0:  # the seeds do not overlap
        grid = np.array([start])
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.stack([np.interp(grid, x, y) for x, y in curves])
        shown = np.isfinite(values).all(axis=0)  # of a run that has grown without bound, what came before
    grid, values = grid[shown], values[:, shown]
    return Series(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0), len(group))


def moving_mean(values: Floats, window: int = WINDOW) -> Floats:
    """Mean of the last ``window`` values; at the beginning, of all values so far."""
    if not np.isfinite(values).all():
        return _with_gaps(values, window)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    last = np.arange(1, len(values) + 1)
    first = np.maximum(0, last - window)
    means: Floats = (sums[last] - sums[first]) / (last - first)
    return means


def _with_gaps(values: Floats, window: int) -> Floats:
    """As `moving_mean`: a value that is not finite spoils the windows that it is in, and no others."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array([values[max(0, end - window) : end].mean() for end in range(1, len(values) + 1)])


def _curve(run: Run, axis: str) -> tuple[Floats, Floats]:
    x = SCALE[axis] * np.array([COSTS[axis](row) for row in run.metrics], dtype=np.float64)
    first = first_evaluations([row.version for row in run.metrics])
    means = moving_mean(run.metric.factor * np.array([row.value for row in run.metrics])[first])
    y = means[np.cumsum(first) - 1]  # stays as it is until another version is evaluated
    last = np.append(np.diff(x) > 0, True)  # of several evaluations at the same x, keep the last
    return x[last], y[last]
