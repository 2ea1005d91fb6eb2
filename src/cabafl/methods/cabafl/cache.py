"""The two-level cache: L2 holds the models that travel, L1 the ones that passed the screening and are aggregated."""

from array import array
from bisect import bisect_left
from typing import NamedTuple

from cabafl.methods.base import Weights
from cabafl.state import State


class SimilarityHistory(State):
    """Every similarity seen so far, in ascending order.

    A plain sorted array: an insertion moves half of it, which takes 20 microseconds at 100,000 entries.
    """

    def __init__(self) -> None:
        self.values = array("d")

    def insert(self, similarity: float) -> tuple[int, int]:
        """Adds a similarity; returns its 1-based rank (the first among equals) and the new length."""
        position = bisect_left(self.values, similarity)
        self.values.insert(position, similarity)
        return position + 1, len(self.values)


class Slot(State):
    """One intermediate model: the devices it visited since its last aggregation, and its screened copy.

    Models are replaced, never changed in place, so L1, L2 and jobs in flight can share an array.
    """

    def __init__(self, model: Weights) -> None:
        self.l2 = model
        self.trained = 0  # c, trainings since the last aggregation
        self.trace: list[int] = []  # devices of the L2 model, including the one that trains it now
        self.samples = 0  # DS2, data size over the trace
        self.booked = 0  # of it by the last visit: the device may claim another number of samples before the job ends
        self.l1 = model
        self.l1_trace: list[int] = []
        self.l1_samples = 0  # DS1

    def visit(self, device: int, samples: int) -> None:
        """Books a device, at dispatch."""
        self.trace.append(device)
        self.samples += samples
        self.booked = samples

    def unvisit(self) -> None:
        """Takes back the last booking, because the job was lost."""
        self.trace.pop()
        self.samples -= self.booked

    def promote(self) -> None:
        """Copies L2 to L1, with trace and data size."""
        self.l1, self.l1_trace, self.l1_samples = self.l2, list(self.trace), self.samples

    def restart(self, model: Weights) -> None:
        """Continues from the global model in both levels, after an aggregation; the L1 trace and data size stay."""
        self.l1 = self.l2 = model
        self.trained, self.trace, self.samples = 0, [], 0


class Decision(NamedTuple):
    """Whether an upload entered L1, and the rank of its similarity in a history of this length."""

    rank: int
    length: int
    accepted: bool


class TwoLevelCache(State):
    """The K slots and the screening rule between their two levels."""

    def __init__(self, slots: int, model: Weights, screening: bool) -> None:
        self.slots = [Slot(model) for _ in range(slots)]
        self.history = SimilarityHistory()
        self.screening = screening

    def store(self, slot: Slot, model: Weights, similarity: float, late: bool, gamma: float) -> Decision:
        """Puts an upload into L2, and into L1 if it is late in the cycle (c > k/2) or rank / length > gamma."""
        slot.trained += 1
        slot.l2 = model
        rank, length = self.history.insert(similarity)
        accepted = not self.screening or late or rank / length > gamma
        if accepted:
            slot.promote()
        return Decision(rank, length, accepted)

    def restart(self, slot: Slot, model: Weights) -> None:
        """Lets a slot continue from the global model after its aggregation.

        With L1, the slot's L1 trace and data size stay, and with them its weight, until they are overwritten. Without
        the L1 level (conf4) a slot has nothing but its own trace, which is empty now: weight 0 until its next upload.
        """
        slot.restart(model)
        if not self.screening:
            slot.l1_trace, slot.l1_samples = [], 0
