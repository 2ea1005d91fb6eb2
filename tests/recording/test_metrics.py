"""The statistics of a summary."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.recording.events import Evaluated
from cabafl.recording.metrics import best_window_mean, fairness, first_evaluations, metric_figures


def evaluated(accuracy: Sequence[float], versions: Sequence[int] | None = None, every: float = 20.0) -> list[Evaluated]:
    """Rows at fixed times; by default each evaluates another version."""
    numbers = range(len(accuracy)) if versions is None else versions
    pairs = zip(numbers, accuracy, strict=True)
    return [Evaluated(every * i, version, value, 1.0, 0, 0, 0, 0, 0, 0.0) for i, (version, value) in enumerate(pairs)]


def test_best_window_is_the_highest_mean_with_its_own_deviation() -> None:
    accuracy = [0.0] * 10 + [0.5] * 5 + [0.7] * 5 + [0.1] * 10
    assert best_window_mean(accuracy) == pytest.approx((0.6, 0.1))
    assert best_window_mean(accuracy[:9]) is None
    assert best_window_mean([0.1, 0.2, 0.3], window=2) == pytest.approx((0.25, 0.05))


def test_a_version_is_evaluated_first_where_it_changes() -> None:
    assert first_evaluations([0, 0, 3, 3, 4]).tolist() == [True, False, True, False, True]
    assert first_evaluations([]).tolist() == []


def test_a_model_that_is_evaluated_several_times_counts_once() -> None:
    accuracy, versions = [], []
    for number in range(20):  # one lucky model, evaluated eight times
        times = 8 if number == 12 else 1
        accuracy += [0.9 if number == 12 else 0.5] * times
        versions += [number] * times
    figures = metric_figures(evaluated(accuracy, versions))
    assert figures["best_window_mean"] == pytest.approx((9 * 0.5 + 0.9) / 10)
    assert figures["best_window_deviation"] == pytest.approx(np.std([0.5] * 9 + [0.9]))
    assert best_window_mean(accuracy) == pytest.approx(((2 * 0.5 + 8 * 0.9) / 10, np.std([0.5] * 2 + [0.9] * 8)))


def test_ten_evaluations_of_fewer_versions_are_not_enough() -> None:
    figures = metric_figures(evaluated([0.5] * 40, [0] * 10 + list(range(1, 9)) + [8] * 22))
    assert set(figures.values()) == {None}


def test_stability_is_the_deviation_of_the_moving_average_over_the_last_half() -> None:
    accuracy = np.concatenate([np.linspace(0, 0.5, 40), np.full(40, 0.5)]).tolist()
    means = [np.mean(accuracy[i - 9 : i + 1]) for i in range(9, 80)]
    assert metric_figures(evaluated(accuracy))["stability"] == pytest.approx(np.std(means[-40:]))
    assert metric_figures(evaluated([0.5] * 9))["stability"] is None
    assert metric_figures(evaluated([0.5] * 10))["stability"] is None  # one moving average does not vary
    assert metric_figures(evaluated([0.5] * 11))["stability"] == 0.0


def test_the_last_half_is_half_of_the_time() -> None:
    accuracy, versions = np.linspace(0.1, 0.6, 30).tolist(), list(range(30))
    still = evaluated(
        [*accuracy, *[accuracy[-1]] * 30], [*versions, *[29] * 30]
    )  # publishes nothing in the second half
    assert metric_figures(still)["best_window_mean"] == pytest.approx(np.mean(accuracy[-10:]))
    assert metric_figures(still)["stability"] is None


def test_a_run_that_only_learns_is_stable_without_its_trend() -> None:
    figures = metric_figures(evaluated(np.linspace(0.1, 0.6, 60).tolist()))
    assert figures["stability"] == pytest.approx(np.std(np.linspace(0.1, 0.6, 60)[30:]))
    assert figures["stability_detrended"] == pytest.approx(0, abs=1e-12)


def test_stability_without_the_trend_is_the_deviation_from_a_line_over_time() -> None:
    draw = np.random.default_rng(3)
    versions = np.sort(draw.integers(0, 50, 80)).tolist()  # some evaluated more than once, others never
    values = draw.random(50)
    rows = evaluated([values[version] for version in versions], versions)
    single = [row for place, row in enumerate(rows) if place == 0 or rows[place - 1].version != row.version]
    points = [
        (single[i].time, np.mean([row.value for row in single[i - 9 : i + 1]]))
        for i in range(9, len(single))
        if single[i].time >= rows[-1].time / 2
    ]
    times, means = np.array(points).T
    line = np.polynomial.Polynomial.fit(times, means, 1)
    figures = metric_figures(rows)
    assert figures["stability"] == pytest.approx(np.std(means))
    assert figures["stability_detrended"] == pytest.approx(np.std(means - line(times)))


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1)), min_size=1, max_size=80))
def test_figures_of_any_run_are_in_order(steps: list[tuple[int, float]]) -> None:
    versions = np.cumsum([step for step, _ in steps]).tolist()
    figures = metric_figures(evaluated([value for _, value in steps], versions))
    assert (figures["best_window_mean"] is None) == (len(set(versions)) < 10)
    if figures["stability"] is not None and figures["stability_detrended"] is not None:
        assert 0 <= figures["stability_detrended"] <= figures["stability"] + 1e-12


def test_fairness_is_the_variance_of_normalised_counts() -> None:
    assert fairness([1, 1, 1, 1]) == 0.0
    assert fairness([2, 0]) == pytest.approx(0.25)
    assert fairness([0, 0]) is None
