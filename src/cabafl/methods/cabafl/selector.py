"""Feature-balance-guided choice of the next device (Algorithm 2 of the paper)."""

from collections.abc import Sequence

import numpy as np

from cabafl.methods.base import Floats, Idle, Ints, Random
from cabafl.methods.cabafl.features import FeatureTable, dot
from cabafl.state import State


class SelectionCounts(State):
    """How often each device was selected, kept so that neither variance nor minimum needs a scan over all devices.

    ``order`` lists the devices by ascending count; the devices with count c stand at ``starts[c]:starts[c + 1]``.
    Counting one more moves a device to the border of its group: O(1).
    """

    def __init__(self, devices: int) -> None:
        self.counts = np.zeros(devices, dtype=np.int64)
        self.order = np.arange(devices, dtype=np.int64)
        self.place = np.arange(devices, dtype=np.int64)
        self.starts = [0]
        self.lowest = 0  # the first group that is not empty
        self.total = 0
        self.square_total = 0

    def add(self, device: int) -> None:
        """One more selection of a device."""
        count = int(self.counts[device])
        if count + 1 == len(self.starts):
            self.starts.append(len(self.counts))
        last = self.starts[count + 1] - 1
        here, other = self.place[device], self.order[last]
        self.order[here], self.order[last] = other, device
        self.place[other], self.place[device] = here, last
        self.starts[count + 1] = last
        if self.starts[self.lowest] == self.starts[self.lowest + 1]:
            self.lowest += 1
        self.counts[device] = count + 1
        self.total += 1
        self.square_total += 2 * count + 1

    def variance(self) -> float:
        """Population variance of the counts divided by their sum; 0 before the first selection."""
        n = len(self.counts)
        if self.total == 0:
            return 0.0
        return (self.square_total * n - self.total**2) / (n * self.total) ** 2

    def least_selected(self, idle: Idle, without: int | None) -> Ints:
        """The idle devices with the smallest count; looks no further than the first group that has one."""
        start = 0
        for count in range(self.lowest, len(self.starts)):
            end = self.starts[count + 1] if count + 1 < len(self.starts) else len(self.order)
            if start == end:
                continue
            group = self.order[start:end]
            start = end
            found = group[idle.among(group)]
            if without is not None:
                found = found[found != without]
            if len(found):
                return found
        return np.zeros(0, dtype=np.int64)


def size_variances(sizes: Floats, slot: int, added: Floats) -> Floats:
    """Population variance of the normalised data sizes of all slots, were ``added`` samples added to one of them.

    One value per entry of ``added``, in closed form: the mean of normalised sizes is always 1/K.
    """
    slots = len(sizes)
    rest = dot(sizes, sizes) - sizes[slot] ** 2
    variances: Floats = np.square(sizes[slot] + added)  # in place from here: with many devices memory counts
    variances += rest
    total = float(sizes.sum()) + added
    variances /= np.square(total, out=total)
    variances /= slots
    variances -= 1.0 / slots**2
    return variances


def best_device(candidates: Ints, scores: Floats) -> tuple[int, float]:
    """The candidate with the highest score; the lowest id among equals."""
    best = scores.max()
    return int(candidates[scores == best].min()), float(best)


def balance_scores(
    features: FeatureTable, trace: Sequence[int], sizes: Floats, slot: int, candidates: Ints, samples: Ints
) -> tuple[Floats, Floats]:
    """w1 (similarity after a visit) and w2 (spread of the data sizes after it) for each candidate."""
    similarity = features.similarity_with(trace, candidates)
    return similarity, size_variances(sizes, slot, samples[candidates].astype(np.float64))


def idle_without(idle: Idle, device: int | None) -> Ints:
    """All idle devices but one."""
    devices = idle.array()
    return devices if device is None else devices[devices != device]


def draw(candidates: Ints, random: Random) -> int:
    """One of the candidates, uniformly."""
    return int(candidates[random.below(len(candidates))])
