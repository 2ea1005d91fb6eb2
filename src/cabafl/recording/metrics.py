"""Figures that sum up a run."""

from collections.abc import Sequence

import numpy as np

WINDOW = 10


def best_window_mean(accuracy: Sequence[float], window: int = WINDOW) -> tuple[float, float] | None:
    """The highest mean over ``window`` consecutive evaluations and the deviation inside that same window.

    This is the "accuracy +- x" of the paper: not a spread over seeds. None with fewer evaluations.
    """
    if len(accuracy) < window:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(accuracy, dtype=np.float64), window)
    best = windows[int(windows.mean(axis=1).argmax())]
    return float(best.mean()), float(best.std())


def stability(accuracy: Sequence[float], window: int = WINDOW) -> float | None:
    """Standard deviation of the moving average over the last half of the run; None when it is too short."""
    if len(accuracy) < window:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(accuracy, dtype=np.float64), window)
    means = windows.mean(axis=1)
    last_half = means[max(0, len(accuracy) // 2 - window + 1) :]
    return float(last_half.std())


def fairness(selections: Sequence[int]) -> float | None:
    """Population variance of the selection counts divided by their sum: 0 is perfectly even."""
    counts = np.asarray(selections, dtype=np.float64)
    return float((counts / counts.sum()).var()) if counts.sum() > 0 else None
