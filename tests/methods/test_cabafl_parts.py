"""Cache, selector, features and aggregation of CaBaFL against naive twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.engine.idle import IdleSet
from cabafl.methods.averaging import weighted_mean
from cabafl.methods.cabafl.aggregation import cache_weights
from cabafl.methods.cabafl.cache import SimilarityHistory
from cabafl.methods.cabafl.features import FeatureTable, cosine
from cabafl.methods.cabafl.selector import SelectionCounts, balance_scores, size_variances
from cabafl.rng import Stream


def naive_scores(
    features: np.ndarray, trace: list[int], sizes: list[float], slot: int, candidates: list[int], samples: list[int]
) -> list[float]:
    """Algorithm 2 as it is printed: a loop over the candidates."""
    total = features.sum(axis=0)
    scores = []
    for device in candidates:
        feature = features[trace].sum(axis=0) + features[device]
        norms = np.linalg.norm(total) * np.linalg.norm(feature)
        w1 = total @ feature / norms if norms > 0 else 0.0
        after = np.array(sizes, dtype=np.float64)
        after[slot] += samples[device]
        scores.append(w1 - np.var(after / after.sum()))
    return scores


@given(st.data())
def test_vectorised_scores_equal_a_naive_loop(data: st.DataObject) -> None:
    devices = data.draw(st.integers(2, 30))
    width = data.draw(st.integers(1, 6))
    slots = data.draw(st.integers(1, 5))
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    features = draw.random((devices, width)).astype(np.float32) * np.float32(draw.choice([0.01, 1.0, 1000.0]))
    features[draw.random(devices) < 0.2] = 0.0  # unknown devices
    trace = draw.integers(0, devices, data.draw(st.integers(0, 8))).tolist()
    samples = draw.integers(1, 1000, devices)
    sizes = draw.integers(0, 5000, slots).astype(np.float64)
    slot = int(draw.integers(slots))
    candidates = np.flatnonzero(draw.random(devices) < data.draw(st.sampled_from([0.3, 0.9, 1.0])))

    table = FeatureTable()
    table.replace(features)
    similarity, spread = balance_scores(table, trace, sizes, slot, candidates, samples)
    expected = naive_scores(
        features.astype(np.float64), trace, sizes.tolist(), slot, candidates.tolist(), samples.tolist()
    )
    np.testing.assert_allclose(similarity - spread, expected, atol=2e-6)


def test_unknown_device_is_scored_as_if_it_added_nothing() -> None:
    table = FeatureTable()
    table.replace(np.array([[1, 2], [0, 0], [3, 1]], dtype=np.float32))
    with_unknown = table.similarity_with([0], np.array([1]))[0]
    assert with_unknown == pytest.approx(table.similarity([0]), rel=1e-12)


def test_cosine_of_nothing_is_zero() -> None:
    assert cosine(np.zeros(3), np.ones(3)) == 0.0


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=8), st.integers(0, 7), st.integers(1, 900))
def test_closed_form_variance(sizes: list[int], slot: int, added: int) -> None:
    slot %= len(sizes)
    after = np.array(sizes, dtype=np.float64)
    after[slot] += added
    closed = size_variances(np.array(sizes, dtype=np.float64), slot, np.array([float(added)]))
    assert closed[0] == pytest.approx(np.var(after / after.sum()), abs=1e-12)


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5]), min_size=1, max_size=40))
def test_rank_is_the_first_position_in_the_sorted_history(values: list[float]) -> None:
    history, seen = SimilarityHistory(), list[float]()
    for value in values:
        seen.append(value)
        assert history.insert(value) == (sorted(seen).index(value) + 1, len(seen))


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 11), st.booleans()), max_size=80), st.integers(0, 12))
def test_selection_counts_equal_a_scan(devices: int, steps: list[tuple[int, bool]], without: int) -> None:
    counts, naive = SelectionCounts(devices), np.zeros(devices)
    idle = IdleSet(devices, np.arange(devices))
    for device, busy in steps:
        device %= devices
        counts.add(device)
        naive[device] += 1
        if busy and device in idle:
            idle.remove(device)
        elif not busy and device not in idle:
            idle.add(device)
    assert counts.counts.tolist() == naive.tolist()
    expected = np.var(naive / naive.sum()) if naive.sum() else 0.0
    assert counts.variance() == pytest.approx(expected, abs=1e-15)
    candidates = [d for d in sorted(idle) if d != without]
    least = [d for d in candidates if naive[d] == min(naive[c] for c in candidates)] if candidates else []
    assert sorted(counts.least_selected(idle, without).tolist()) == least


def test_aggregation_weights_of_empty_slots_are_zero_and_perfect_balance_is_bounded() -> None:
    weights = cache_weights(np.array([0.0, 4.0, 4.0]), np.array([0.0, 1.0, 0.5]), alpha=0.5, epsilon=1e-8)
    assert weights[0] == 0.0
    assert weights[1] / weights[2] == pytest.approx(0.5 / 1e-8)
    alpha_zero = cache_weights(np.array([0.0, 4.0]), np.array([0.0, 0.5]), alpha=0.0, epsilon=1e-8)
    assert alpha_zero.tolist() == [0.0, 1.0]


@given(st.integers(1, 6), st.integers(1, 200_000), st.integers(0, 2**32))
def test_weighted_mean_equals_the_plain_formula(models: int, size: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    stack = draw.normal(size=(models, size)).astype(np.float32)
    weights = draw.random(models) + 0.1
    expected = (weights / weights.sum()) @ stack.astype(np.float64)
    np.testing.assert_allclose(weighted_mean(list(stack), weights), expected, rtol=1e-6, atol=1e-7)


def test_weighted_mean_needs_a_weight() -> None:
    with pytest.raises(ValueError, match="positive"):
        weighted_mean([np.zeros(2, dtype=np.float32)], [0.0])


def test_idle_draws_are_uniform_and_respect_the_excluded_device() -> None:
    idle = IdleSet(5, np.arange(5))
    idle.remove(1)
    stream = Stream(7)
    drawn = [idle.draw(stream, without=2) for _ in range(3000)]
    shares = np.bincount(drawn, minlength=5) / 3000
    np.testing.assert_allclose(shares, [1 / 3, 0, 0, 1 / 3, 1 / 3], atol=0.04)
    assert sorted(idle.draw_many(stream, 9)) == [0, 2, 3, 4]
