"""Statistics that summarise a run."""

from collections.abc import Sequence

import numpy as np

WINDOW = 10  # evaluations


def best_window_mean(accuracy: Sequence[float], window: int = WINDOW) -> tuple[float, float] | None:
    """Returns the highest mean of ``window`` consecutive evaluations and the standard deviation in that window.

    This is the "accuracy ± x" of the paper, not a spread over seeds. None with fewer than ``window`` evaluations.
    """
    if len(accuracy) < window:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(accuracy, dtype=np.float64), window)
    best = windows[int(windows.mean(axis=1).argmax())]
    return float(best.mean()), float(best.std())


def stability(accuracy: Sequence[float], window: int = WINDOW) -> float | None:
    """Standard deviation of the moving average in the second half of the run; None with fewer than ``window``
    evaluations."""
    if len(accuracy) < window:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(accuracy, dtype=np.float64), window)
    means = windows.mean(axis=1)
    last_half = means[max(0, len(accuracy) // 2 - window + 1) :]
    return float(last_half.std())


def fairness(selections: Sequence[int]) -> float | None:
    """Population variance of the devices' shares of all selections: 0 is perfectly even. None without selections."""
    counts = np.asarray(selections, dtype=np.float64)
    return float((counts / counts.sum()).var()) if counts.sum() > 0 else None
