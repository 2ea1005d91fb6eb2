"""Anonymous shared memory: it has no name and no file, and is freed when the last process closes it."""

import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64  # bytes


def anonymous_file() -> int:
    """A file descriptor of memory that child processes can inherit; grows with `os.ftruncate`."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("cabafl")
    descriptor, path = tempfile.mkstemp(prefix="cabafl")  # other systems: an unlinked temporary file
    Path(path).unlink()
    return descriptor


def aligned(size: int) -> int:
    """``size`` in bytes, rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Region(NamedTuple):
    """Where an array lies in an arena."""

    offset: int  # bytes
    shape: tuple[int, ...]
    dtype: str


class Arena:
    """Memory mapped by every process that has the descriptor; a `Region` locates an array in it."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size
        self._map = mmap.mmap(descriptor, max(size, 1))

    @classmethod
    def create(cls, descriptor: int, size: int) -> "Arena":
        """Sizes the file to ``size`` bytes and maps it."""
        os.ftruncate(descriptor, max(size, 1))
        return cls(descriptor, size)

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[np.generic]], descriptor: int) -> "tuple[Arena, dict[str, Region]]":
        """Copies arrays into the file behind ``descriptor``; returns the arena and each array's region."""
        regions, end = {}, 0
        for name, array in arrays.items():
            regions[name] = Region(end, array.shape, array.dtype.str)
            end += aligned(array.nbytes)
        arena = cls.create(descriptor, end)
        for name, array in arrays.items():
            arena.array(regions[name])[...] = array
        return arena, regions

    def array(self, region: Region) -> npt.NDArray[Any]:
        """A view of the shared memory: writes are visible to every process."""
        count = int(np.prod(region.shape, dtype=np.int64))
        view = np.frombuffer(self._map, dtype=np.dtype(region.dtype), count=count, offset=region.offset)
        return view.reshape(region.shape)
