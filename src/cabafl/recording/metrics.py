"""Statistics that summarise a run.

A model that is evaluated several times, because no other was published in between, counts once: windows are over
*versions*. Otherwise a method that publishes rarely would be judged by the same model ten times.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cabafl.recording.events import Evaluated
from cabafl.recording.scale import MetricInfo

Floats = npt.NDArray[np.float64]
WINDOW = 10  # evaluated versions


def first_evaluations(versions: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Marks the evaluations whose version differs from that of the evaluation before."""
    numbers = np.asarray(versions)
    return np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)]


def averaged_rows(rows: Sequence[Evaluated]) -> list[Evaluated]:
    """The evaluations with metric and loss of the averaged model; all of them must have it."""
    return [
        row._replace(value=row.averaged_value, loss=row.averaged_loss)
        for row in rows
        if row.averaged_value is not None and row.averaged_loss is not None
    ]


def metric_figures(rows: Sequence[Evaluated]) -> dict[str, float | None]:
    """The figures of ``summary.json`` that summarise the metric over the run; None: too few versions."""
    values = np.array([row.value for row in rows])
    first = first_evaluations([row.version for row in rows])
    best = best_window_mean(values[first].tolist(), more_is_better=rows[0].metric.more_is_better)
    times, means = _late_means(np.array([row.time for row in rows]), first, values)
    with np.errstate(over="ignore", invalid="ignore"):  # of a model that has grown without bound
        return {
            "best_window_mean": best[0] if best else None,
            "best_window_deviation": best[1] if best else None,
            "stability": stability(means),
            "stability_detrended": stability_detrended(times, means),
        }


def best_window_mean(
    values: Sequence[float], window: int = WINDOW, more_is_better: bool = True
) -> tuple[float, float] | None:
    """Returns the best mean of ``window`` consecutive versions and the standard deviation in that window.

    Of accuracies, this is the "accuracy ± x" of the paper, not a spread over seeds. None with fewer than ``window``
    versions.
    """
    if len(values) < window:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(values, dtype=np.float64), window)
    with np.errstate(over="ignore", invalid="ignore"):
        means = windows.mean(axis=1)
        known = np.where(np.isnan(means), -np.inf if more_is_better else np.inf, means)  # NaN is never the best
        best = windows[int(known.argmax() if more_is_better else known.argmin())]
        return float(best.mean()), float(best.std())


def _late_means(times: Floats, first: npt.NDArray[np.bool_], values: Floats) -> tuple[Floats, Floats]:
    """Times and values of the moving average over `WINDOW` versions in the second half of the run."""
    if first.sum() < WINDOW:
        return np.empty(0), np.empty(0)
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.lib.stride_tricks.sliding_window_view(values[first], WINDOW).mean(axis=1)
    ends = times[first][WINDOW - 1 :]
    late = ends >= times[-1] / 2
    return ends[late], means[late]


def stability(means: Floats) -> float | None:
    """Standard deviation of the moving average; None with fewer than two values."""
    return float(means.std()) if len(means) >= 2 else None


def stability_detrended(times: Floats, means: Floats) -> float | None:
    """Standard deviation of the moving average around its least-squares line over time; None with fewer than three
    values, which a line fits too well."""
    if len(means) < 3:
        return None
    since, deviation = times - times.mean(), means - means.mean()
    squares = float(since @ since)
    slope = float(since @ deviation) / squares if squares > 0 else 0.0
    return float(np.sqrt(np.mean((deviation - slope * since) ** 2)))


def over_devices(values: Sequence[float], metric: MetricInfo) -> dict[str, float]:
    """How the metric is distributed over devices: mean, standard deviation, mean of the worst tenth of the devices (at
    least one), and Jain's index (sum^2 / (n * sum of squares)), which is 1 if all devices have the same."""
    each = np.sort(np.asarray(values, dtype=np.float64))
    worst = each if metric.more_is_better else each[::-1]
    squares = float((each * each).sum())
    return {
        "devices_mean": float(each.mean()),
        "devices_deviation": float(each.std()),
        "devices_worst_decile": float(worst[: -(-len(each) // 10)].mean()),
        "devices_jain": float(each.sum()) ** 2 / (len(each) * squares) if squares else 1.0,
    }


def fairness(selections: Sequence[int]) -> float | None:
    """Population variance of the devices' shares of all selections: 0 is perfectly even. None without selections."""
    counts = np.asarray(selections, dtype=np.float64)
    return float((counts / counts.sum()).var()) if counts.sum() > 0 else None
