"""Device selection: the vectorised scores and the selection counts against naive versions, unknown devices and zero
vectors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.engine.idle import IdleSet
from cabafl.methods.cabafl.selector import FeatureTable, SelectionCounts, balance_scores, cosine, size_variances


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


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=8), st.integers(0, 7), st.integers(1, 900))
def test_closed_form_variance(sizes: list[int], slot: int, added: int) -> None:
    slot %= len(sizes)
    after = np.array(sizes, dtype=np.float64)
    after[slot] += added
    closed = size_variances(np.array(sizes, dtype=np.float64), slot, np.array([float(added)]))
    assert closed[0] == pytest.approx(np.var(after / after.sum()), abs=1e-12)


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
    assert counts.variance(devices) == pytest.approx(expected, abs=1e-15)
    total = naive.sum()
    at_random = (1 - 1 / devices) / (devices * total) if total else 0.0
    assert counts.relative_variance(devices) == pytest.approx(expected / at_random if at_random else 0.0, abs=1e-9)
    candidates = [d for d in sorted(idle) if d != without]
    least = [d for d in candidates if naive[d] == min(naive[c] for c in candidates)] if candidates else []
    assert sorted(counts.least_selected(idle, without).tolist()) == least


def test_unknown_device_is_scored_as_if_it_added_nothing() -> None:
    table = FeatureTable()
    table.replace(np.array([[1, 2], [0, 0], [3, 1]], dtype=np.float32))
    with_unknown = table.similarity_with([0], np.array([1]))[0]
    assert with_unknown == pytest.approx(table.similarity([0]), rel=1e-12)


def test_cosine_of_a_zero_vector_is_zero() -> None:
    assert cosine(np.zeros(3), np.ones(3)) == 0.0
