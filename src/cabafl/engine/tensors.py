"""Arrays in the safetensors format, written piece by piece.

Other threads run while a piece is written, hashed or synced, and no array is copied, whatever the version of the
safetensors package. Small pieces also keep the rest of the disk quick: a sync of the journal may have to wait for all
that this file has written and not synced yet.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from cabafl.state import raw

PIECE = 8 << 20  # bytes written at a time, and about as many between two syncs
SMALL = 1 << 18  # short arrays are joined up to this length before they are written

_NAMES = {
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
    "float32": "F32",
    "int32": "I32",
    "uint32": "U32",
    "float16": "F16",
    "int16": "I16",
    "uint16": "U16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


class Abandoned(Exception):
    """The file is not needed any more and was not finished."""


def write_tensors(
    path: Path,
    arrays: Mapping[str, npt.NDArray[Any]],
    metadata: Mapping[str, str],
    abandoned: Callable[[], bool] = lambda: False,
) -> str:
    """Writes a file, syncs it to disk and returns its SHA-256.

    Raises OSError if it cannot be written, TypeError for arrays that the format has no name for, and `Abandoned` when
    ``abandoned`` becomes true in the meantime. What has been written then stays on disk.
    """
    ordered = sorted(arrays.items(), key=lambda entry: -entry[1].itemsize)  # larger items first: all are aligned
    digest = hashlib.sha256()
    unsynced = 0
    with path.open("wb", buffering=0) as file:
        for piece in _pieces([memoryview(_header(ordered, metadata)), *(raw(array) for _, array in ordered)]):
            if abandoned():
                raise Abandoned
            digest.update(piece)
            _write_whole(file.fileno(), piece)
            unsynced += len(piece)
            if unsynced >= PIECE:
                os.fsync(file.fileno())
                unsynced = 0
        os.fsync(file.fileno())
    return digest.hexdigest()


def _write_whole(descriptor: int, content: memoryview) -> None:
    """Writes all bytes, however many calls it takes."""
    while len(content):
        content = content[os.write(descriptor, content) :]


def check_type(array: npt.NDArray[Any]) -> None:
    """Raises TypeError for an array of a type that the format does not have."""
    if array.dtype.name not in _NAMES or not array.dtype.isnative:
        raise TypeError(f"a checkpoint cannot store an array of {array.dtype}; accepted: {', '.join(_NAMES)}")


def _header(arrays: list[tuple[str, npt.NDArray[Any]]], metadata: Mapping[str, str]) -> bytes:
    table: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in arrays:
        check_type(array)
        start, end = end, end + array.nbytes
        table[name] = {"dtype": _NAMES[array.dtype.name], "shape": array.shape, "data_offsets": (start, end)}
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _pieces(contents: Iterable[memoryview]) -> Iterator[memoryview]:
    """The same bytes in pieces of at most `PIECE`; short contents are joined."""
    small: list[memoryview] = []
    size = 0
    for content in contents:
        if size + len(content) < SMALL:
            small.append(content)
            size += len(content)
            continue
        if small:
            yield memoryview(b"".join(small))
            small, size = [], 0
        for start in range(0, len(content), PIECE):
            yield content[start : start + PIECE]
    if small:
        yield memoryview(b"".join(small))
