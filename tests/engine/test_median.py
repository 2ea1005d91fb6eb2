"""The running median against its naive twin."""

from hypothesis import given
from hypothesis import strategies as st

from cabafl.engine.median import VotedMedian
from cabafl.state import Decoder, Encoder


def naive(votes: list[tuple[int, float]], window: int) -> float | None:
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
        assert median.value() == naive(votes[: number + 1], window)
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
