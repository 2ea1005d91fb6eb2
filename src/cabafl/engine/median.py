"""A running median in which every device has one vote, and the timeout that follows from it."""

from bisect import bisect_left, insort
from typing import Any

from cabafl.state import State

TIMEOUT_FACTOR = 5.0  # of the median job time
SHORTEST_TIMEOUT = 30.0  # seconds; below it the network and a busy device make more difference than the job
ENOUGH_UPLOADS = 3  # before the median counts; with few slots half of them, so that the first round cannot stall


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


def automatic_timeout(durations: VotedMedian, uploads: int, slots: int) -> float | None:
    """Seconds after which a server of real devices gives up a job, if the experiment leaves that to it
    (``run.slot_timeout = "auto"``); None as long as too little is known."""
    median = durations.value()
    if median is None or uploads < min(ENOUGH_UPLOADS, (slots + 1) // 2):
        return None
    return max(SHORTEST_TIMEOUT, TIMEOUT_FACTOR * median)
