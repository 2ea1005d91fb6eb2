"""Arrays in shared memory."""

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from cabafl.execution.pool import ALIGNMENT, Arena, aligned
from cabafl.execution.starting import anonymous_file


def test_arrays_are_where_their_regions_say_and_aligned() -> None:
    arrays: dict[str, npt.NDArray[Any]] = {
        "a": np.arange(5, dtype=np.int64),
        "b": np.ones((3, 7), dtype=np.float32),
        "c": np.zeros(0, dtype=np.uint8),
    }
    descriptor = anonymous_file()
    arena, regions = Arena.of(arrays, descriptor)
    other = Arena(descriptor, arena.size)  # as another process maps it
    for name, array in arrays.items():
        np.testing.assert_array_equal(other.array(regions[name]), array)
        assert regions[name].offset % ALIGNMENT == 0
        assert other.array(regions[name]).dtype == array.dtype
    os.close(descriptor)


def test_what_one_writes_the_other_reads() -> None:
    descriptor = anonymous_file()
    mine, regions = Arena.of({"x": np.zeros(4, dtype=np.float32)}, descriptor)
    theirs = Arena(descriptor, mine.size)
    theirs.array(regions["x"])[2] = 7
    assert mine.array(regions["x"]).tolist() == [0, 0, 7, 0]
    os.close(descriptor)


def test_sizes_are_rounded_up() -> None:
    assert [aligned(size) for size in (0, 1, 64, 65)] == [0, 64, 64, 128]
