"""One file of the journal, ``<number of its first input>.log``: a head, then one record per input.

::

    head:    magic, marker                        the marker is random, one per file
    record:  marker, number, durable, length of the tree, length of tree and arrays, their checksum,
             checksum of all that; tree; arrays

The tree is JSON, the arrays are raw bytes; nothing is pickled. ``durable`` is how many inputs were on disk for certain
when the record was added. It tells a torn tail, which a crash may leave and which is cut off, from damage: an input
that cannot be read although a later record knows it to be on disk. Such a record is found by its marker, which nobody
who sends weights can know.
"""

import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cabafl.engine.inputs import Input
from cabafl.engine.tensors import raw
from cabafl.errors import UserError
from cabafl.state import Arrays, Decoder, Encoder

MAGIC = b"cabaflJ\x01"
_HEAD = struct.Struct("<8s8s")
_RECORD = struct.Struct("<8sQQIQI")  # without the checksum of itself, which follows
_CHECKSUM = struct.Struct("<I")
_RECORD_SIZE = _RECORD.size + _CHECKSUM.size
_PIECE = 1 << 20  # bytes checked at a time
BinaryFile = BufferedReader | BufferedRandom


class Record(NamedTuple):
    """The head of a record and where its content begins."""

    number: int
    durable: int  # inputs on disk when it was added
    tree: int  # bytes
    length: int  # bytes of tree and arrays
    checksum: int  # of tree and arrays
    start: int

    @property
    def end(self) -> int:
        """Where the next record begins."""
        return self.start + self.length


class Unreadable(Exception):
    """A record that is torn or damaged."""

    def __init__(self, number: int, offset: int) -> None:
        super().__init__(number)
        self.number = number
        self.offset = offset


def new_head() -> bytes:
    """The head of a new file."""
    return _HEAD.pack(MAGIC, os.urandom(8))


def pack(given: Input, number: int, durable: int, marker: bytes) -> list[memoryview]:
    """The bytes of a record. They share the memory of the input's arrays."""
    encoder = Encoder()
    tree = encoder.encode(given)
    arrays = [[array.dtype.str, list(array.shape)] for array in encoder.arrays.values()]
    text = json.dumps({"input": tree, "arrays": arrays}, separators=(",", ":")).encode()
    contents = [raw(array) for array in encoder.arrays.values()]
    checksum = zlib.crc32(text)
    for content in contents:
        checksum = zlib.crc32(content, checksum)
    length = len(text) + sum(map(len, contents))
    head = _RECORD.pack(marker, number, durable, len(text), length, checksum)
    return [memoryview(head + _CHECKSUM.pack(zlib.crc32(head)) + text), *contents]


class Segment:
    """Reads one file, whose first input is number ``first``. Raises `UserError` if it is not a journal's."""

    def __init__(self, path: Path, first: int) -> None:
        self.path = path
        self.first = first
        with path.open("rb") as file:
            head = file.read(_HEAD.size)
        if len(head) < _HEAD.size or head[:8] != MAGIC:
            raise damaged(path, "it has no head of a journal of this version")
        self.marker = _HEAD.unpack(head)[1]

    def inputs(self, first: int, end: int) -> Iterator[tuple[int, Input]]:
        """The inputs from number ``first`` up to, not including, ``end``, one in memory at a time. Raises `UserError`
        if one cannot be read."""
        number = self.first
        with self.path.open("rb") as file:
            try:
                for record in self._records(file):
                    if first <= number < end:
                        yield number, _read(file, record)
                    number += 1
            except Unreadable as error:
                raise damaged(self.path, f"input {error.number} cannot be read") from None
        if number < end:
            raise damaged(self.path, f"input {number} is missing")

    def recover(self) -> int:
        """Cuts off a torn tail, which only the newest file can have. Returns the number of its next input."""
        number = self.first
        with self.path.open("r+b") as file:
            try:
                for record in self._records(file):
                    _check(file, record)
                    number += 1
            except Unreadable as error:
                if self._known_durable(file, error.offset + 1, error.number):
                    raise damaged(self.path, f"input {error.number} cannot be read, but later ones can") from None
                file.truncate(error.offset)
                os.fsync(file.fileno())
        return number

    def _records(self, file: BinaryFile) -> Iterator[Record]:
        """Goes from record to record without reading their content."""
        size = os.fstat(file.fileno()).st_size
        number, offset = self.first, _HEAD.size
        while offset < size:
            file.seek(offset)
            record = self._head(file.read(_RECORD_SIZE), offset)
            if record is None or record.number != number or record.end > size:
                raise Unreadable(number, offset)
            yield record
            number, offset = number + 1, record.end

    def _head(self, found: bytes, offset: int) -> Record | None:
        if len(found) < _RECORD_SIZE:
            return None
        head, checksum = found[: _RECORD.size], found[_RECORD.size :]
        marker, number, durable, tree, length, content = _RECORD.unpack(head)
        if marker != self.marker or _CHECKSUM.unpack(checksum)[0] != zlib.crc32(head):
            return None
        return Record(number, durable, tree, length, content, offset + _RECORD_SIZE)

    def _known_durable(self, file: BinaryFile, offset: int, number: int) -> bool:
        """Whether a record after ``offset`` was written when this input was on disk."""
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            while (offset := content.find(self.marker, offset)) >= 0:
                record = self._head(content[offset : offset + _RECORD_SIZE], offset)
                if record is not None and record.durable > number:
                    return True
                offset += 1
        return False


def damaged(path: Path, why: str) -> UserError:
    """The error for a journal that cannot be replayed."""
    return UserError(f"{path}: damaged: {why}; accepted: a journal as it was written, or another --out")


def _check(file: BinaryFile, record: Record) -> None:
    """Compares the checksum, without keeping the content in memory."""
    file.seek(record.start)
    checksum, rest = 0, record.length
    while rest:
        piece = file.read(min(rest, _PIECE))
        checksum, rest = zlib.crc32(piece, checksum), rest - len(piece)
        if not piece:
            break
    if rest or checksum != record.checksum:
        raise Unreadable(record.number, record.start - _RECORD_SIZE)


def _read(file: BinaryFile, record: Record) -> Input:
    """The input of a record. Arrays are read straight into memory of their own."""
    wrong = Unreadable(record.number, record.start - _RECORD_SIZE)
    file.seek(record.start)
    text = file.read(record.tree)
    checksum = zlib.crc32(text)
    try:
        content = json.loads(text)
        arrays: Arrays = {}
        left = record.length - record.tree
        for name, (dtype, shape) in enumerate(content["arrays"]):
            array = np.empty(_sound(shape, np.dtype(dtype), left), np.dtype(dtype))
            file.readinto(raw(array))
            checksum, left = zlib.crc32(raw(array), checksum), left - array.nbytes
            arrays[str(name)] = array
        given: Input = Decoder(arrays).decode(content["input"])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise wrong from None
    if left or checksum != record.checksum:
        raise wrong
    return given


def _sound(shape: list[Any], dtype: np.dtype[Any], most: int) -> tuple[int, ...]:
    """A shape that fits into ``most`` bytes; raises ValueError for any other."""
    sizes = tuple(int(size) for size in shape)
    count = 1
    for size in sizes:
        count *= size
    if dtype.kind not in "biuf" or any(size < 0 for size in sizes) or count * dtype.itemsize > most:
        raise ValueError("not an array")
    return sizes
