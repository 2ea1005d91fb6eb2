"""What the server knows about the data of the devices: one feature vector each, and cosines to their sum."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from cabafl.methods.base import Floats, Ints
from cabafl.state import State

_ROWS = 256  # rows turned into float64 at a time, so that no second table is made
_BLOCK = 8192  # candidates rated at a time, for the same reason


def dot(a: Floats, b: Floats) -> float:
    """Inner product in NumPy's own summation order: BLAS may choose another one for memory aligned differently."""
    return float((a * b).sum())


def cosine(a: Floats, b: Floats) -> float:
    """Cosine of the angle between two vectors; 0 when one of them is zero."""
    norms = math.sqrt(dot(a, a)) * math.sqrt(dot(b, b))
    return dot(a, b) / norms if norms > 0 else 0.0


class FeatureTable(State):
    """Row j is the feature distribution of device j under the model of the last collection.

    A device that did not answer has a zero row, which is exactly "unknown": it adds nothing to the global feature, to
    the sums of traces or to a score. Rows are float32 (half the memory, twice the speed of the one product a selection
    needs), sums and cosines float64. A torch tensor, because torch aligns memory and so repeats its bits.
    """

    def __init__(self) -> None:
        self.rows = torch.zeros((0, 0))
        self.total = np.zeros(0)
        self.products = np.zeros(0)  # row . total
        self.squares = np.zeros(0)  # row . row
        self._derive()

    def replace(self, rows: npt.NDArray[np.float32]) -> None:
        """A completed collection takes the place of the old one, for all traces at once."""
        self.rows = torch.from_numpy(rows)  # no copy: it stays as it is until the next collection
        self._derive()

    def _derive(self) -> None:
        devices, width = self.rows.shape
        self.total = np.zeros(width)
        for block in self._blocks():
            self.total += block.sum(axis=0)
        if len(self.products) != devices:  # else the old ones are overwritten: a large fleet's are in memory once
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
        """How balanced the data of a trace is: its cosine to the global feature."""
        return cosine(self.total, self.of_trace(trace))

    def similarity_with(self, trace: Sequence[int], candidates: Ints) -> Floats:
        """`similarity` of the trace extended by each candidate in turn; one matrix-vector product for all of them."""
        base = self.of_trace(trace)
        crossed = self._times(torch.tensor(base, dtype=torch.float32), candidates)
        constants = dot(self.total, base), dot(base, base), math.sqrt(dot(self.total, self.total))
        similarity = np.zeros(len(candidates))
        for start in range(0, len(candidates), _BLOCK):
            part = slice(start, start + _BLOCK)
            self._cosines(candidates[part], crossed[part], *constants, out=similarity[part])
        return similarity

    def _times(self, vector: torch.Tensor, candidates: Ints) -> npt.NDArray[np.float32]:
        """The candidates' rows times a vector."""
        if 2 * len(candidates) >= len(self.rows):
            every: npt.NDArray[np.float32] = self.rows.mv(vector).numpy()
            return every[candidates]
        chosen = np.empty(len(candidates), dtype=np.float32)
        for start in range(0, len(candidates), _BLOCK):
            part = slice(start, start + _BLOCK)
            chosen[part] = self.rows.index_select(0, torch.from_numpy(candidates[part])).mv(vector).numpy()
        return chosen

    def _cosines(
        self, some: Ints, crossed: npt.NDArray[np.float32], dots: float, square: float, norm: float, out: Floats
    ) -> None:
        squares = self.squares[some] + 2.0 * crossed.astype(np.float64) + square
        norms = norm * np.sqrt(np.maximum(squares, 0.0))
        np.divide(self.products[some] + dots, norms, out=out, where=norms > 0)
