"""Anonymous shared memory: no name, no file, gone when the last process that has it open is gone."""

import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_ALIGN = 64


def anonymous_file(size: int) -> int:
    """A file descriptor of ``size`` bytes of memory that child processes can be given."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("cabafl")
    else:  # pragma: no cover - other systems: an unlinked temporary file
        descriptor, path = tempfile.mkstemp(prefix="cabafl")
        Path(path).unlink()
    os.ftruncate(descriptor, max(size, 1))
    return descriptor


class Place(NamedTuple):
    """Where an array lies in an arena."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


class Arena:
    """Arrays laid out once, mapped by every process that has the descriptor and the places."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size
        self._map = mmap.mmap(descriptor, max(size, 1))

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[np.generic]], descriptor: int) -> "tuple[Arena, dict[str, Place]]":
        """Copies arrays into the file behind a descriptor."""
        places, end = {}, 0
        for name, array in arrays.items():
            places[name] = Place(end, array.shape, array.dtype.str)
            end += -(-array.nbytes // _ALIGN) * _ALIGN
        os.ftruncate(descriptor, max(end, 1))
        arena = cls(descriptor, end)
        for name, array in arrays.items():
            arena.array(places[name])[...] = array
        return arena, places

    def array(self, place: Place) -> npt.NDArray[np.generic]:
        """A view of the arena's own memory."""
        count = int(np.prod(place.shape, dtype=np.int64))
        view = np.frombuffer(self._map, dtype=np.dtype(place.dtype), count=count, offset=place.offset)
        return view.reshape(place.shape)
