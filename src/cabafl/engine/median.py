"""A running median in which every device has one vote."""

from bisect import bisect_left, insort
from typing import Any

from cabafl.state import State


class VotedMedian(State):
    """The median of the last value of each device, over the ``window`` devices that were heard last.

    A device that answers ten times as often as the others has no more weight than they have. With an even number of
    votes it is the lower of the two middle ones, so it is always a value that some device reported. A vote costs two
    searches in a sorted list.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.votes: dict[int, float] = {}  # by device, in the order of their last vote
        self._ordered: list[float] = []

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores: the votes in their order."""
        return {"window": self.window, "votes": self.votes}

    def restore(self, state: dict[str, Any]) -> None:
        """Sets everything from a `state`."""
        self.window, self.votes = state["window"], state["votes"]
        self._ordered = sorted(self.votes.values())

    def __len__(self) -> int:
        return len(self.votes)

    def vote(self, device: int, value: float) -> None:
        """Replaces the device's earlier vote; with a full window the device heard longest ago loses its own."""
        if device in self.votes:
            self._withdraw(device)
        elif len(self.votes) == self.window:
            self._withdraw(next(iter(self.votes)))
        self.votes[device] = value
        insort(self._ordered, value)

    def _withdraw(self, device: int) -> None:
        del self._ordered[bisect_left(self._ordered, self.votes.pop(device))]

    def value(self) -> float | None:
        """The median; None without votes."""
        return self._ordered[(len(self._ordered) - 1) // 2] if self._ordered else None
