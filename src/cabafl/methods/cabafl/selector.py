"""Feature-balance-guided selection of the next device (Algorithm 2 of the paper): what the server knows about the
devices' data, how often each device was selected, and the scores that follow from both."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cabafl.methods.base import Floats, Idle, Ints, Random
from cabafl.state import State

if TYPE_CHECKING:
    from torch import Tensor  # torch is loaded when a table is made: `cabafl methods` and `cabafl config` need none

# Rows converted to float64 at a time. With 100,000 x 512 features `_derive` takes 0.32 s and 2 MB of temporary memory;
# in one piece it takes 0.70 s and 820 MB.
_ROWS = 256

# Candidates rated at a time. In one piece, the temporary arrays of a million candidates exceed what `cabafl bench
# memory` allows (385 of 378 MB); blocks cost no time.
_BLOCK = 8192


def dot(a: Floats, b: Floats) -> float:
    """Inner product in NumPy's summation order. BLAS may choose another order depending on memory alignment."""
    return float((a * b).sum())


def cosine(a: Floats, b: Floats) -> float:
    """Cosine of the angle between two vectors; 0 if one of them is zero."""
    norms = math.sqrt(dot(a, a)) * math.sqrt(dot(b, b))
    return dot(a, b) / norms if norms > 0 else 0.0


class FeatureTable(State):
    """F: row j is the feature vector of device j under the model of the last collection.

    A device that did not answer has a zero row, which means "unknown": it adds nothing to the global feature, to the
    feature of a trace or to a score. Rows are float32, which halves memory and the time of the one product that a
    selection needs; sums and cosines are float64. The table is a torch tensor because torch aligns its memory, so the
    product has the same bits in every run.
    """

    def __init__(self) -> None:
        import torch

        self.rows = torch.zeros((0, 0))  # F, shape (devices, feature length)
        self.total = np.zeros(0)  # f_g, the global feature
        self.products = np.zeros(0)  # row . total, per device
        self.squares = np.zeros(0)  # row . row, per device
        self._derive()

    def replace(self, rows: npt.NDArray[np.float32]) -> None:
        """Takes over the table of a completed collection, without copying it; all features change at once."""
        from torch import from_numpy

        self.rows = from_numpy(rows)
        self._derive()

    def _derive(self) -> None:
        devices, width = self.rows.shape
        self.total = np.zeros(width)
        for block in self._blocks():
            self.total += block.sum(axis=0)
        if len(self.products) != devices:  # otherwise reuse the arrays: a second pair would count in `bench memory`
            self.products, self.squares = np.empty(devices), np.empty(devices)
        for i, block in enumerate(self._blocks()):
            part = slice(i * _ROWS, i * _ROWS + len(block))
            self.products[part] = (block * self.total).sum(axis=1)
            self.squares[part] = (block * block).sum(axis=1)

    def _blocks(self) -> Iterator[Floats]:
        for start in range(0, len(self.rows), _ROWS):
            yield self.rows[start : start + _ROWS].numpy().astype(np.float64)

    def of_trace(self, trace: Sequence[int]) -> Floats:
        """The feature of a model: the sum over the devices it visited."""
        feature: Floats = self.rows.numpy()[list(trace)].astype(np.float64).sum(axis=0)
        return feature

    def similarity(self, trace: Sequence[int]) -> float:
        """How balanced the data of a trace is: cosine of its feature and the global feature."""
        return cosine(self.total, self.of_trace(trace))

    def similarity_with(self, trace: Sequence[int], candidates: Ints) -> Floats:
        """`similarity` of the trace extended by each candidate in turn; shape (candidates,).

        With the inner products of `_derive`, cos(f_g, f + F_j) needs only F_j . f: one matrix-vector product for all.
        """
        import torch

        base = self.of_trace(trace)
        crossed = self._times(torch.tensor(base, dtype=torch.float32), candidates)
        dots, square, norm = dot(self.total, base), dot(base, base), math.sqrt(dot(self.total, self.total))
        similarity = np.zeros(len(candidates))
        for start in range(0, len(candidates), _BLOCK):
            part = slice(start, start + _BLOCK)
            some = candidates[part]
            squares = self.squares[some] + 2.0 * crossed[part].astype(np.float64) + square
            norms = norm * np.sqrt(np.maximum(squares, 0.0))
            np.divide(self.products[some] + dots, norms, out=similarity[part], where=norms > 0)
        return similarity

    def _times(self, vector: "Tensor", candidates: Ints) -> npt.NDArray[np.float32]:
        """The candidates' rows times a vector.

        A few rows are gathered first: for 1,000 of 100,000 x 512 that takes 0.2 ms, the product with all rows 32 ms.
        Around half of the rows the product with all becomes cheaper.
        """
        if 2 * len(candidates) >= len(self.rows):
            every: npt.NDArray[np.float32] = self.rows.mv(vector).numpy()
            return every[candidates]
        from torch import from_numpy

        chosen = np.empty(len(candidates), dtype=np.float32)
        for start in range(0, len(candidates), _BLOCK):
            part = slice(start, start + _BLOCK)
            chosen[part] = self.rows.index_select(0, from_numpy(candidates[part])).mv(vector).numpy()
        return chosen


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

    def variance(self, n: int) -> float:
        """Population variance of S / sum(S) over the ``n`` devices that can be selected; 0 before the first selection.
        The others, places of a fleet that nobody has taken, were never selected and do not count."""
        if self.total == 0:
            return 0.0
        return (self.square_total * n - self.total**2) / (n * self.total) ** 2

    def relative_variance(self, n: int) -> float:
        """`variance` relative to what it is on average after as many uniform random selections, (1 - 1/N) / (N T).

        This is the chi-square statistic of the counts divided by its degrees of freedom. Random selection gives about
        1, more even selection less, whatever the number of devices N and of selections T.
        """
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
