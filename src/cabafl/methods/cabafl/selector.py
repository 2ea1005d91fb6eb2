"""Feature-balance-guided selection of the next device (Algorithm 2 of the paper)."""

from collections.abc import Sequence

import numpy as np

from cabafl.methods.base import Floats, Idle, Ints, Random
from cabafl.methods.cabafl.features import FeatureTable, dot
from cabafl.state import State


class SelectionCounts(State):
    """S: how often each device was selected.

    ``order`` lists the devices by ascending count; those with count c are at ``starts[c]:starts[c + 1]``. One more
    selection moves a device across the border of its group, in O(1), and neither variance nor minimum scans all
    devices: with 100,000 devices variance and `least_selected` take 1 and 26 microseconds, scans 256 and 302.
    """

    def __init__(self, devices: int) -> None:
        self.counts = np.zeros(devices, dtype=np.int64)
        self.order = np.arange(devices, dtype=np.int64)
        self.place = np.arange(devices, dtype=np.int64)  # of each device in ``order``
        self.starts = [0]
        self.lowest = 0  # smallest count that a device has
        self.total = 0
        self.square_total = 0

    def add(self, device: int) -> None:
        """Counts one more selection of a device."""
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
        """Population variance of S / sum(S) over all devices; 0 before the first selection."""
        n = len(self.counts)
        if self.total == 0:
            return 0.0
        return (self.square_total * n - self.total**2) / (n * self.total) ** 2

    def relative_variance(self) -> float:
        """`variance` relative to what it is on average after as many uniform random selections, (1 - 1/N) / (N T).

        This is the chi-square statistic of the counts divided by its degrees of freedom. Random selection gives about
        1, more even selection less, whatever the number of devices N and of selections T.
        """
        n = len(self.counts)
        if self.total == 0 or n == 1:
            return 0.0
        return (self.square_total * n - self.total**2) / (self.total * (n - 1))

    def least_selected(self, idle: Idle, without: int | None) -> Ints:
        """The idle devices other than ``without`` with the smallest count among them."""
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
    """w2: population variance of DS / sum(DS) over the slots, if ``added`` samples were added to one slot.

    One value per entry of ``added``, in closed form: the mean of the normalised sizes is always 1/K. Computed in place:
    with temporary arrays a million candidates exceed what `cabafl bench memory` allows (381 of 378 MB).
    """
    slots = len(sizes)
    rest = dot(sizes, sizes) - sizes[slot] ** 2
    variances: Floats = np.square(sizes[slot] + added)
    variances += rest
    total = float(sizes.sum()) + added
    variances /= np.square(total, out=total)
    variances /= slots
    variances -= 1.0 / slots**2
    return variances


def best_device(candidates: Ints, scores: Floats) -> tuple[int, float]:
    """The candidate with the highest score, the lowest number among equals; and its score."""
    best = scores.max()
    return int(candidates[scores == best].min()), float(best)


def balance_scores(
    features: FeatureTable, trace: Sequence[int], sizes: Floats, slot: int, candidates: Ints, samples: Ints
) -> tuple[Floats, Floats]:
    """w1 (similarity after a visit) and w2 (variance of the data sizes after it) of each candidate.

    Args:
        features: The feature table.
        trace: Devices the slot's model has visited.
        sizes: DS2, data size of every slot; shape (slots,).
        slot: Index of the slot in ``sizes``.
        candidates: Device numbers.
        samples: Training samples of every device; shape (devices,).
    """
    similarity = features.similarity_with(trace, candidates)
    return similarity, size_variances(sizes, slot, samples[candidates].astype(np.float64))


def idle_without(idle: Idle, device: int | None) -> Ints:
    """All idle devices except ``device``."""
    devices = idle.array()
    return devices if device is None else devices[devices != device]


def draw(candidates: Ints, random: Random) -> int:
    """One of the candidates, uniformly."""
    return int(candidates[random.below(len(candidates))])
