"""The two-level cache: L2 holds the models that travel, L1 those of them that were good enough to be merged."""

from typing import Any, NamedTuple

from sortedcontainers import SortedList

from cabafl.methods.base import Weights
from cabafl.state import State


class SimilarityHistory(State):
    """Every similarity seen so far, in order; answers ranks in O(log n)."""

    def __init__(self) -> None:
        self._sorted = SortedList()

    def insert(self, similarity: float) -> tuple[int, int]:
        """Adds one and returns its 1-based rank (the first among equals) and the new length."""
        self._sorted.add(similarity)
        return self._sorted.bisect_left(similarity) + 1, len(self._sorted)

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores."""
        return {"values": list(self._sorted)}

    def restore(self, state: dict[str, Any]) -> None:
        """The reverse of `state`."""
        self._sorted = SortedList(state["values"])


class Slot(State):
    """One intermediate model: where it has been since its last aggregation, and its screened copy.

    Models are replaced, never changed, so L1, L2 and jobs in flight can share the same array.
    """

    def __init__(self, model: Weights) -> None:
        self.l2 = model
        self.trained = 0
        self.trace: list[int] = []  # devices of the L2 model, the one it is training on included
        self.samples = 0
        self.l1 = model
        self.l1_trace: list[int] = []
        self.l1_samples = 0

    def visit(self, device: int, samples: int) -> None:
        """Books a device for the model at dispatch."""
        self.trace.append(device)
        self.samples += samples

    def unvisit(self, samples: int) -> None:
        """Takes back the last booking: that device failed."""
        self.trace.pop()
        self.samples -= samples

    def promote(self) -> None:
        """L2 becomes L1, with its trace."""
        self.l1, self.l1_trace, self.l1_samples = self.l2, list(self.trace), self.samples

    def restart(self, model: Weights) -> None:
        """After an aggregation the slot goes on with the global model, in both levels.

        The L1 trace and data size stay: until it is overwritten, the slot takes part with its old weight.
        """
        self.l1 = self.l2 = model
        self.trained, self.trace, self.samples = 0, [], 0


class Decision(NamedTuple):
    """Why an upload was or was not taken into L1."""

    rank: int
    length: int
    accepted: bool


class TwoLevelCache(State):
    """The K slots and the screening rule between their levels."""

    def __init__(self, slots: int, model: Weights, cycle: int, gamma: float, screening: bool) -> None:
        self.slots = [Slot(model) for _ in range(slots)]
        self.history = SimilarityHistory()
        self.cycle = cycle
        self.gamma = gamma
        self.screening = screening

    def store(self, slot: Slot, model: Weights, similarity: float) -> Decision:
        """An upload enters L2, and L1 if it is far enough in its cycle or balanced enough among all seen so far."""
        slot.trained += 1
        slot.l2 = model
        rank, length = self.history.insert(similarity)
        accepted = not self.screening or slot.trained > self.cycle / 2 or rank / length > self.gamma
        if accepted:
            slot.promote()
        return Decision(rank, length, accepted)
