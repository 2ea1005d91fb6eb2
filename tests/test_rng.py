"""Randomness is a function of seed, purpose and number only."""

from hypothesis import given
from hypothesis import strategies as st

from cabafl.rng import Stream

MASK = (1 << 64) - 1


def split_mix(key: int, number: int) -> int:
    """A naive implementation of one draw, with Python's unbounded integers."""
    z = (key + number * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@given(st.integers(0, (1 << 63) - 1), st.integers(0, 1 << 50))
def test_draws_made_in_blocks_equal_draws_made_one_by_one(key: int, start: int) -> None:
    stream = Stream(key, start)
    assert [stream.bits() for _ in range(300)] == [split_mix(key, start + i) for i in range(1, 301)]


@given(st.integers(0, (1 << 63) - 1), st.integers(0, 1000), st.integers(0, 1000))
def test_a_stream_repeats_its_draws_when_its_counter_is_reset(key: int, first: int, second: int) -> None:
    stream = Stream(key)
    for counter in (first, second, first):
        stream.counter = counter
        assert stream.bits() == split_mix(key, counter + 1)
