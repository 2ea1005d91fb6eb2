"""GrowingTable of numbers that grow."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_FIRST, _GROWTH = 256, 1.5


class GrowingTable:
    """Arrays of one length, by name. ``fill`` is what a row has that is not given."""

    def __init__(self, fill: Mapping[str, tuple[str, float]]) -> None:
        self.length = 0
        self._fill = {name: value for name, (_, value) in fill.items()}
        self._arrays = {name: np.empty(0, dtype=kind) for name, (kind, _) in fill.items()}

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name][: self.length]

    def get(self, name: str) -> Array | None:
        """A column; None if there is none of this name."""
        return self[name] if name in self._arrays else None

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        return list(self._arrays)

    @property
    def nbytes(self) -> int:
        """Memory of all columns."""
        return sum(array.nbytes for array in self._arrays.values())

    def add(self, name: str, kind: str, fill: float) -> None:
        """One more column; the rows so far have ``fill``."""
        self._fill[name] = fill
        self._arrays[name] = np.full(self.length, fill, dtype=kind)

    def grow(self, length: int) -> None:
        """Makes room; new rows have the ``fill`` values."""
        if length <= self.length:
            return
        for name, array in self._arrays.items():
            if length > len(array):
                larger = np.empty(max(length, _FIRST, int(len(array) * _GROWTH)), dtype=array.dtype)
                larger[: self.length] = array[: self.length]
                self._arrays[name] = array = larger
            array[self.length : length] = self._fill[name]
        self.length = length

    def append(self, count: int, values: Mapping[str, Array]) -> None:
        """Adds ``count`` rows."""
        start = self.length
        self.grow(start + count)
        for name, value in values.items():
            self._arrays[name][start : start + count] = value
