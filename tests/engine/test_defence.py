"""The defences against naive twins, their warm-up, their counts, and that a checkpoint keeps them."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.engine.defence import ENOUGH, Defaults, Defence, DefenceRules, VotedMedian, distance, moved
from cabafl.methods.base import Ints, Job, Weights
from cabafl.state import Decoder, Encoder
from tests.scripted import vector

SENT = vector(3.0, 4.0, 1.0)  # two trainable entries of norm 5 and a buffer


def defence(claimed: list[int] | None = None, **rules: Any) -> tuple[Defence, list[tuple[str, dict[str, Any]]]]:
    notes: list[tuple[str, dict[str, Any]]] = []
    made = Defence(
        DefenceRules(**{"update_clip": None, "feature_clip": None, "sample_quantile": None, **rules}),
        Defaults(),
        lambda kind, **facts: notes.append((kind, facts)),
        2,
        np.array(claimed if claimed is not None else [10] * 40, dtype=np.int64),
    )
    return made, notes


def job(device: int, sent: Weights = SENT) -> Job:
    return Job(0, device, 0, 0, sent)


def step(x: float, y: float, buffer: float = 0.0) -> Weights:
    return SENT + vector(x, y, buffer)


def test_an_update_is_cut_to_a_multiple_of_the_median_norm() -> None:
    made, notes = defence(update_clip=2.0)
    for device in range(ENOUGH):
        honest = step(0.6, 0.8)
        assert made.upload(job(device), honest) is honest
    cut = made.upload(job(30), step(30.0, -40.0))
    np.testing.assert_allclose(cut - SENT, [1.2, -1.6, 0.0], rtol=1e-5)
    assert made.counts == {30: {"update": 1}}
    assert made.totals() == {"update": 1}
    [(kind, facts)] = notes
    assert kind == "clip"
    assert facts == {
        "device": 30,
        "what": "update",
        "value": pytest.approx(50.0),
        "bound": pytest.approx(2.0, rel=1e-5),
    }


def test_buffers_have_a_median_of_their_own() -> None:
    made, _ = defence(update_clip=2.0)
    for device in range(ENOUGH):
        made.upload(job(device), step(0.6, 0.8, 0.1))
    cut = made.upload(job(30), step(0.6, 0.8, 100.0))
    np.testing.assert_allclose(cut - SENT, [0.6, 0.8, 0.2], rtol=1e-4)
    assert made.totals() == {"buffers": 1}


def test_the_first_uploads_move_the_model_at_most_by_its_own_length() -> None:
    made, _ = defence(update_clip=2.0)
    cut = made.upload(job(0), step(3e6, 4e6))
    np.testing.assert_allclose(cut - SENT, [3.0, 4.0, 0.0], rtol=1e-5)
    zero = np.zeros(3, dtype=np.float32)
    free = step(3e6, 4e6)
    assert made.upload(job(1, zero), free) is free  # a model of zeros has no length to go by


def test_a_minority_of_liars_in_the_warm_up_does_not_set_the_bound() -> None:
    made, _ = defence(update_clip=2.0)
    for device in range(ENOUGH):
        made.upload(job(device), step(1e6, 0.0) if device < 4 else step(0.6, 0.8))
    assert distance(made.upload(job(30), step(1e6, 0.0)), SENT) == pytest.approx(2.0, rel=1e-5)


def test_one_liar_that_uploads_all_the_time_does_not_set_the_bound() -> None:
    made, _ = defence(update_clip=2.0)
    for device in range(ENOUGH):
        made.upload(job(device), step(0.6, 0.8))
    for _ in range(500):
        cut = made.upload(job(30), step(1e6, 0.0))
    assert distance(cut, SENT) == pytest.approx(2.0, rel=1e-5)


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(-50, 50, width=32)), max_size=60), st.integers(0, 60))
def test_clipping_equals_its_naive_twin_and_survives_a_checkpoint(uploads: list[tuple[int, float]], cut: int) -> None:
    made, _ = defence(update_clip=1.5)
    votes: dict[int, float] = {}
    for number, (device, move) in enumerate(uploads):
        if number == cut:
            encoder = Encoder()
            tree = encoder.encode(made.state())
            made, _ = defence(update_clip=9.9)
            made.restore(Decoder(encoder.arrays).decode(tree))
        sent, trained = SENT.astype(np.float64), step(move, 0.0).astype(np.float64)
        norm = math.dist(trained[:2], sent[:2])
        ordered = sorted(votes.values())
        median = ordered[(len(ordered) - 1) // 2] if len(ordered) >= ENOUGH else 0.0
        bound = 1.5 * median or 5.0
        expected = trained if norm <= bound else sent + (trained - sent) * bound / norm
        votes[device] = norm
        np.testing.assert_allclose(made.upload(job(device), step(move, 0.0)), expected, rtol=1e-5, atol=1e-5)


def test_distance_and_step_in_blocks() -> None:
    draw = np.random.default_rng(1)
    a, b = (draw.normal(0, 1, 200_000).astype(np.float32) for _ in range(2))
    assert distance(a, b) == pytest.approx(math.dist(a.astype(np.float64), b.astype(np.float64)))
    np.testing.assert_allclose(moved(a, b, 0.25), 0.75 * a + 0.25 * b, atol=1e-5)


def test_features_are_bounded_by_the_median_of_their_collection() -> None:
    made, notes = defence(feature_clip=2.0)
    rows = np.zeros((7, 2), dtype=np.float32)
    rows[:5] = [[3, 4], [0, 5], [5, 0], [60, 80], [0, 0]]
    rows[5], rows[6] = np.nan, 1e38
    answered = np.array([True] * 7)
    made.features(rows, answered)
    np.testing.assert_allclose(rows, [[3, 4], [0, 5], [5, 0], [6, 8], [0, 0], [0, 0], [0, 0]])
    assert answered.tolist() == [True] * 5 + [False] * 2
    assert made.counts == {3: {"features": 1}, 5: {"refused": 1}, 6: {"refused": 1}}
    assert [kind for kind, _ in notes] == ["refuse", "refuse", "clip"]


def test_without_rules_only_what_is_absurd_is_refused() -> None:
    made, notes = defence()
    rows = np.array([[1e6, 0], [1, 1]], dtype=np.float32)
    answered = np.array([True, False])
    made.features(rows, answered)
    assert rows.tolist() == [[1e6, 0], [0, 0]]
    far = step(1e9, 0)
    assert made.upload(job(0), far) is far
    assert made.claim(0, "seconds", 5.0, 1e7) == 5.0
    assert not notes
    assert [made.claim(1, "joules", value, 1e9) for value in (math.nan, math.inf, -1.0, 1e300)] == [None] * 4
    assert made.counts == {1: {"refused": 4}}


def naive_bound(claims: list[int], quantile: float, factor: float) -> int:
    known = sorted(claim for claim in claims if claim > 0)
    return max(1, int(factor * known[math.ceil(quantile * len(known)) - 1]))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 1, 7, 50, 10**6])), min_size=1, max_size=30),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.sampled_from([1.0, 2.5]),
)
def test_samples_are_bounded_by_a_quantile_of_all_claims(
    joins: list[tuple[int, int]], quantile: float, factor: float
) -> None:
    made, _ = defence([0] * 6, sample_quantile=quantile, sample_factor=factor)
    claims = [0] * 6
    for device, samples in joins:
        made.join(device, samples)
        claims[device] = samples
        bound = naive_bound(claims, quantile, factor) if any(claims) else 10**9
        assert made.samples(device) == min(samples, bound)
        together: Ints = made.bounded(made.claimed)
        assert together.tolist() == [min(claim, bound) for claim in claims]


def test_claims_are_capped_without_a_rule_too() -> None:
    made, notes = defence([5, 2**60])
    sizes = made.bounded(made.claimed)
    assert sizes.tolist() == [5, 10**9]
    made.report(sizes)
    assert made.counts == {1: {"samples": 1}}
    assert len(notes) == 1


def test_a_changed_rule_holds_from_now_on() -> None:
    made, _ = defence()
    made.change("update_clip", 3.0)
    assert made.update_clip == 3.0
    made.change("update_clip", "auto")
    assert made.update_clip is None


# The running median


def naive_median(votes: list[tuple[int, float]], window: int) -> float | None:
    """The lower median over the last vote of each of the ``window`` devices that voted last."""
    last: dict[int, float] = {}
    for device, value in reversed(votes):
        if device not in last and len(last) < window:
            last[device] = value
    ordered = sorted(last.values())
    return ordered[(len(ordered) - 1) // 2] if ordered else None


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 100))), st.integers(1, 8), st.integers(0, 30))
def test_the_median_is_that_of_the_naive_twin(votes: list[tuple[int, float]], window: int, cut: int) -> None:
    median = VotedMedian(window)
    for number, (device, value) in enumerate(votes):
        median.vote(device, value)
        assert median.value() == naive_median(votes[: number + 1], window)
        if number == cut:  # through a checkpoint
            encoder = Encoder()
            median = Decoder(encoder.arrays).decode(encoder.encode(median))
            assert isinstance(median, VotedMedian)
    assert len(median) == min(window, len({device for device, _ in votes}))


def test_a_device_that_votes_often_has_one_vote() -> None:
    median = VotedMedian(100)
    for device in range(5):
        median.vote(device, 1.0)
    for _ in range(50):
        median.vote(99, 1000.0)
    assert median.value() == 1.0
