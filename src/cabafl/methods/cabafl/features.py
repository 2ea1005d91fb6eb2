"""What the server knows about the devices' data: one feature vector per device, and cosines to their sum."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from cabafl.methods.base import Floats, Ints
from cabafl.state import State

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
        self.rows = torch.zeros((0, 0))  # F, shape (devices, feature length)
        self.total = np.zeros(0)  # f_g, the global feature
        self.products = np.zeros(0)  # row . total, per device
        self.squares = np.zeros(0)  # row . row, per device
        self._derive()

    def replace(self, rows: npt.NDArray[np.float32]) -> None:
        """Takes over the table of a completed collection, without copying it; all features change at once."""
        self.rows = torch.from_numpy(rows)
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

    def _times(self, vector: torch.Tensor, candidates: Ints) -> npt.NDArray[np.float32]:
        """The candidates' rows times a vector.

        A few rows are gathered first: for 1,000 of 100,000 x 512 that takes 0.2 ms, the product with all rows 32 ms.
        Around half of the rows the product with all becomes cheaper.
        """
        if 2 * len(candidates) >= len(self.rows):
            every: npt.NDArray[np.float32] = self.rows.mv(vector).numpy()
            return every[candidates]
        chosen = np.empty(len(candidates), dtype=np.float32)
        for start in range(0, len(candidates), _BLOCK):
            part = slice(start, start + _BLOCK)
            chosen[part] = self.rows.index_select(0, torch.from_numpy(candidates[part])).mv(vector).numpy()
        return chosen
