"""The statistics of a summary."""

import numpy as np
import pytest

from cabafl.recording.metrics import best_window_mean, fairness, stability


def test_best_window_is_the_highest_mean_with_its_own_deviation() -> None:
    accuracy = [0.0] * 10 + [0.5] * 5 + [0.7] * 5 + [0.1] * 10
    assert best_window_mean(accuracy) == pytest.approx((0.6, 0.1))
    assert best_window_mean(accuracy[:9]) is None
    assert best_window_mean([0.1, 0.2, 0.3], window=2) == pytest.approx((0.25, 0.05))


def test_stability_is_the_deviation_of_the_moving_average_over_the_last_half() -> None:
    accuracy = np.concatenate([np.linspace(0, 0.5, 40), np.full(40, 0.5)]).tolist()
    means = [np.mean(accuracy[i - 9 : i + 1]) for i in range(9, 80)]
    assert stability(accuracy) == pytest.approx(np.std(means[-40:]))
    assert stability([0.5] * 9) is None


def test_fairness_is_the_variance_of_normalised_counts() -> None:
    assert fairness([1, 1, 1, 1]) == 0.0
    assert fairness([2, 0]) == pytest.approx(0.25)
    assert fairness([0, 0]) is None
