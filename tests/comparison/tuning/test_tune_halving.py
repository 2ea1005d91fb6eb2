"""Who is promoted, what counts as best, and what resuming saves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.comparison.tuning.halving import Part, Trial, leader, promotable, ranked, rung_shares, saved_seconds
from cabafl.comparison.tuning.metric import NOT_REACHED, Metric, parse_metric, result
from tests.comparison.tuning.made_up import evaluation


def waiting(number: int, *scores: float) -> Trial:
    return Trial(number, {}, len(scores) - 1, "waiting", list(scores))


def better_high(score: float) -> float:
    return -score


def test_rungs_are_thirds_of_thirds() -> None:
    assert rung_shares(3) == pytest.approx([1 / 9, 1 / 3, 1])
    assert rung_shares(1) == [1]


def test_the_best_third_is_promoted_and_the_highest_rung_comes_first() -> None:
    trials = [waiting(0, 0.1), waiting(1, 0.3)]
    assert promotable(trials, 3, better_high) is None
    trials.append(waiting(2, 0.2))
    assert promotable(trials, 3, better_high) is trials[1]
    assert promotable(trials, 1, better_high) is None
    trials += [waiting(3, 0.0, 0.5), waiting(4, 0.0, 0.4), waiting(5, 0.0, 0.6)]
    assert promotable(trials, 3, better_high) is trials[5]


def test_a_promoted_trial_still_counts_below() -> None:
    """Else a rung would promote more than a third."""
    trials = [waiting(0, 0.9), waiting(1, 0.1), waiting(2, 0.2)]
    trials[0].rung, trials[0].phase = 1, "running"
    assert promotable(trials, 3, better_high) is None
    trials += [waiting(3, 0.3), waiting(4, 0.3), waiting(5, 0.3)]
    assert promotable(trials, 3, better_high) is trials[3]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_at_most_a_third_of_each_rung_goes_on(scores: list[float]) -> None:
    trials: list[Trial] = []
    for number, score in enumerate(scores):
        trials.append(waiting(number, score))
        while (trial := promotable(trials, 3, better_high)) is not None:
            trial.rung += 1
            trial.scores.append(scores[trial.number])
            trial.phase = "done" if trial.rung == 2 else "waiting"
    counts = [sum(len(trial.scores) > rung for trial in trials) for rung in range(3)]
    assert counts[0] == len(scores)
    # a newcomer may push others out of the best third after they have gone on, so more than a third may have in the end
    assert counts[1] >= counts[0] // 3
    assert counts[2] >= counts[1] // 3


def test_without_a_finished_trial_the_leader_goes_on() -> None:
    trials = [waiting(0, 0.1), waiting(1, 0.9), waiting(2, 0.0, 0.2)]
    assert leader(trials, better_high) is trials[2]
    trials[0].phase = "done"
    assert leader(trials, better_high) is None


def test_the_order_of_all_trials() -> None:
    done, failed = waiting(3, 0.1, 0.1, 0.2), waiting(4, 0.9, 0.9)
    done.phase, failed.phase = "done", "failed"
    order = ranked(
        [waiting(0, 0.9), waiting(1, 0.8, 0.3), waiting(2, 0.8, 0.5), done, failed, Trial(5, {})], better_high
    )
    assert [trial.number for trial in order] == [3, 2, 1, 0]


def test_a_trial_that_has_reached_the_target_early_beats_one_that_took_longer() -> None:
    early, late = waiting(0, 10.0), waiting(1, NOT_REACHED * 1.5, NOT_REACHED * 1.4, 80.0)
    early.phase = late.phase = "done"
    assert [trial.number for trial in ranked([late, early], lambda score: score)] == [0, 1]


def test_what_resuming_saves() -> None:
    trial = Trial(0, {}, parts=[Part(0, 10.0, 8.0), Part(0, 3.0, 1.0), Part(1, 20.0, 18.0), Part(2, 60.0, 58.0)])
    assert trial.processor == 93
    assert saved_seconds([trial, Trial(1, {}, parts=[Part(0, 10.0, 8.0)])]) == (8 + 1) + (8 + 1 + 18)


def test_scores() -> None:
    rising = [evaluation(float(t), t, t / 100) for t in range(41)]
    assert result(rising, whole=True) == pytest.approx(0.355)  # mean of 0.31 to 0.40, as in reports
    assert result(rising[:5], whole=True) == pytest.approx(0.03)  # the best 3 of 5
    assert result(rising[:12], whole=False) == pytest.approx(0.085)  # the best 6 of 12
    assert result(rising[:1], whole=False) == 0
    same = [evaluation(float(t), 0, 0.1) for t in range(30)]
    assert result(same, whole=True) == pytest.approx(0.1)
    time, energy = parse_metric("time_to_25"), parse_metric("energy_to_25")
    assert time.score([rising], whole=True) == 25
    assert energy.score([rising], whole=True) == 50
    assert time.score([rising, rising[2:]], whole=True) == 25


def test_averaged_models_are_judged_where_there_are_some() -> None:
    rows = [evaluation(float(t), t, 0.1)._replace(averaged_value=t / 100, averaged_loss=1.0) for t in range(41)]
    assert parse_metric("accuracy").score([rows], whole=True) == pytest.approx(0.355)
    assert parse_metric("time_to_25").score([rows], whole=True) == 25


def test_trials_without_the_target_are_behind_by_their_accuracy() -> None:
    metric = parse_metric("time_to_90")
    low, high = ([evaluation(float(t), t, top * t / 40) for t in range(41)] for top in (0.5, 0.8))
    reached = [evaluation(float(t), t, t / 40) for t in range(41)]
    scores = [metric.score([rows], whole=True) for rows in (reached, high, low)]
    assert scores == sorted(scores)
    assert len(set(scores)) == 3
    assert [metric.reached(score) for score in scores] == [True, False, False]
    assert metric.reached(metric.score([reached, low], whole=True)) is False  # one seed is not enough
    assert Metric("accuracy").reached(0.9) is False
