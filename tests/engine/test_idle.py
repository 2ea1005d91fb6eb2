"""The set of idle devices, compared with a Python set."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.engine.idle import IdleSet
from cabafl.rng import Stream

DEVICES = 12


@given(st.lists(st.integers(0, DEVICES - 1), max_size=60), st.integers(0, 2**32))
def test_it_behaves_like_a_set(moves: list[int], key: int) -> None:
    idle, naive, random = IdleSet(DEVICES, np.arange(0, DEVICES, 2)), set(range(0, DEVICES, 2)), Stream(key)
    for device in moves:
        if device in naive:
            idle.remove(device)
        else:
            idle.add(device)
        naive ^= {device}
        assert len(idle) == len(naive)
        assert set(idle) == set(idle.array().tolist()) == naive
        assert idle.among(np.arange(DEVICES)).tolist() == [each in naive for each in range(DEVICES)]
        if naive:
            assert idle.draw(random) in naive
            drawn = idle.draw(random, without=device)
            assert drawn in naive
            assert drawn != device or naive == {device}
        some = idle.draw_many(random, 5, without=[device])
        assert len(set(some)) == len(some) == min(5, len(naive - {device}))
        assert set(some) <= naive - {device}


def test_draws_are_uniform() -> None:
    idle, random = IdleSet(5, np.arange(5)), Stream(3)
    counts = np.bincount([idle.draw(random, without=2) for _ in range(4000)], minlength=5)
    assert counts[2] == 0
    assert np.abs(counts[[0, 1, 3, 4]] - 1000).max() < 150


def test_a_checkpoint_keeps_the_order_of_draws() -> None:
    idle = IdleSet(6, np.arange(6))
    for device in (3, 0, 5):
        idle.remove(device)
    idle.add(0)
    other = object.__new__(IdleSet)
    other.restore(idle.state())
    assert [idle.draw(Stream(9)) for _ in range(3)] == [other.draw(Stream(9)) for _ in range(3)]
    other.remove(0)
    assert 0 not in other


def test_adding_or_removing_twice_is_a_bug() -> None:
    idle = IdleSet(3, np.arange(2))
    with pytest.raises(RuntimeError, match="device 1 is idle already"):
        idle.add(1)
    with pytest.raises(RuntimeError, match="device 2 is not idle"):
        idle.remove(2)
