"""The two-level cache: ranks in the similarity history and the screening rule."""

import time
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.methods.cabafl.cache import SimilarityHistory, TwoLevelCache
from tests.scripted import vector


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5]), min_size=1, max_size=40))
def test_rank_is_the_first_position_in_the_sorted_history(values: list[float]) -> None:
    history, seen = SimilarityHistory(), list[float]()
    for value in values:
        seen.append(value)
        assert history.insert(value) == (sorted(seen).index(value) + 1, len(seen))


def test_rank_stays_fast_with_many_entries() -> None:
    history = SimilarityHistory()
    history.values = array("d", [i / 100_000 for i in range(100_000)])
    started = time.process_time()
    for i in range(1_000):
        history.insert(i / 1_000)
    assert (time.process_time() - started) / 1_000 < 1e-3  # seconds per insertion; 2e-5 is usual


@pytest.mark.parametrize(
    ("similarities", "gamma", "accepted"),
    [
        ([0.5, 0.4, 0.6, 0.3], 0.3, [True, True, True, True]),  # ranks 1/1, 1/2, 3/3; past k/2
        ([0.5, 0.4, 0.6, 0.3], 0.5, [True, False, True, True]),
        ([0.5, 0.5, 0.5, 0.5], 0.9, [True, False, True, True]),  # the first rank among equals
    ],
)
def test_uploads_enter_l1_by_rank_or_late_in_the_cycle(
    similarities: list[float], gamma: float, accepted: list[bool]
) -> None:
    cache = TwoLevelCache(1, vector(0), screening=True)
    slot = cache.slots[0]
    for number, (similarity, enters) in enumerate(zip(similarities, accepted, strict=True), 1):
        slot.visit(number, samples=10)
        assert cache.store(slot, vector(number), similarity, number > 2, gamma).accepted == enters
        assert slot.l2 == vector(number)
        assert (slot.l1 is slot.l2) == enters
        assert (slot.l1_trace == slot.trace) == enters


@pytest.mark.parametrize(("screening", "left"), [(True, ([3], 10)), (False, ([], 0))])
def test_a_restarted_slot_keeps_its_weight_only_with_l1(screening: bool, left: tuple[list[int], int]) -> None:
    cache = TwoLevelCache(1, vector(0), screening=screening)
    slot = cache.slots[0]
    slot.visit(3, samples=10)
    cache.store(slot, vector(1), 0.5, late=True, gamma=0.0)
    cache.restart(slot, vector(2))
    assert slot.l1 is slot.l2
    assert (slot.trained, slot.trace, slot.samples) == (0, [], 0)
    assert (slot.l1_trace, slot.l1_samples) == left
