"""The write-ahead log of a server of real devices: every input is on disk before it takes effect.

It consists of files that are only appended to. A new one begins with each checkpoint; files whose inputs a checkpoint
includes are deleted. A restarted server restores its checkpoint and replays the inputs after it. What a replay leaves
out is in the quarantine beside them (`engine.quarantine`).

One file, ``<number of its first input>.log``, is a head, then one record per input::

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
import shutil
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import BufferedRandom, BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cabafl.engine.inputs import Input
from cabafl.engine.quarantine import Quarantine, damaged
from cabafl.errors import UserError
from cabafl.files import cannot_record, sync_folder
from cabafl.recording.folder import JOURNAL
from cabafl.state import Arrays, Decoder, Encoder, raw

SEGMENT_BYTES = 64 << 20  # a longer file is followed by a new one also between checkpoints
MOST_BUFFERS = 1024  # of one system call (IOV_MAX)
MAGIC = b"cabaflJ\x01"
_HEAD = struct.Struct("<8s8s")
_RECORD = struct.Struct("<8sQQIQI")  # without the checksum of itself, which follows
_CHECKSUM = struct.Struct("<I")
_RECORD_SIZE = _RECORD.size + _CHECKSUM.size
_PIECE = 1 << 20  # bytes checked at a time
BinaryFile = BufferedReader | BufferedRandom


class Journal:
    """The journal of one run folder. ``keep``: keep all inputs on disk, for a later replay of the whole run.

    Raises `UserError` if it is damaged. Reads only the newest file, and no array as a whole. Not for several threads.
    """

    def __init__(self, run: Path, keep: bool = False) -> None:
        self.path = run / JOURNAL
        self.path.mkdir(exist_ok=True)
        self.keep = keep
        if (self.path / "journal.jsonl").exists():
            raise UserError(
                f"{self.path}: written by an earlier version of cabafl; finish the run with that version, or start it "
                "again in a new folder"
            )
        self._firsts = sorted(int(path.stem) for path in self.path.glob("*.log"))  # the first input of each file
        self._superfluous: deque[int] = deque()  # the first input of files to delete
        self._pending: list[memoryview] = []  # added, not committed
        self.quarantine = Quarantine(self.path)
        self.length = self._recover() if self._firsts else 0
        if not self._firsts:
            self._begin(0)
        self._durable = self.length  # inputs on disk for certain

    # Files

    def _file(self, first: int) -> Path:
        return self.path / f"{first:08d}.log"

    def _recover(self) -> int:
        """Opens the newest file behind its last whole record. Returns the number of the next input."""
        first = self._firsts[-1]
        path = self._file(first)
        if path.stat().st_size <= len(new_head()):  # the process died while it created the file
            self._firsts.pop()
            self._begin(first)
            return first
        segment = Segment(path, first)
        length = segment.recover()
        self._marker = segment.marker
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._size = path.stat().st_size
        return length

    def _begin(self, first: int) -> None:
        """Creates the file that starts with input ``first``, and continues there."""
        head, path = new_head(), self._file(first)
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o644)
            self._write([memoryview(head)])
            os.fsync(self._descriptor)
            sync_folder(self.path)
        except OSError as error:
            raise cannot_record(error, self.path) from error
        self._marker, self._size = head[8:], len(head)
        self._firsts.append(first)

    # Writing

    def add(self, given: Input) -> int:
        """Appends an input, whose arrays must not change before `commit`, and returns its number."""
        number = self.length
        self._pending += pack(given, number, self._durable, self._marker)
        self.length += 1
        return number

    def commit(self) -> None:
        """Returns when all inputs added so far are on disk: one sync for all. Raises `RunStopped` if they cannot be
        written; none of them counts then."""
        if not self._pending:
            return
        try:
            self._write(self._pending)
            os.fsync(self._descriptor)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise cannot_record(error, self.path) from error
        self._size += sum(map(len, self._pending))
        self._pending, self._durable = [], self.length
        if self._size > SEGMENT_BYTES:
            self.cut()
        self._delete_one()

    def _write(self, contents: Sequence[memoryview]) -> None:
        """Appends all bytes, however many calls it takes: one, unless there are very many."""
        rest = deque(contents)
        while rest:
            written = os.writev(self._descriptor, list(islice(rest, MOST_BUFFERS)))
            while rest and written >= len(rest[0]):
                written -= len(rest.popleft())
            if written:
                rest[0] = rest[0][written:]

    def cut(self) -> None:
        """Commits and starts a new file, unless this one is empty: a checkpoint is being made of all inputs so far."""
        self.commit()
        if self._firsts[-1] < self.length:
            os.close(self._descriptor)
            self._begin(self.length)

    def forget(self, first: int) -> None:
        """Deletes the files whose inputs all lie before number ``first``: a checkpoint on disk includes them. Deleting
        many gigabytes takes long, so this deletes the oldest one, and each `commit` the next."""
        if self.keep:
            return
        while len(self._firsts) > 1 and self._firsts[1] <= first:
            self._superfluous.append(self._firsts.pop(0))
        self._delete_one()
        self.quarantine.forget(self._firsts[0])

    def _delete_one(self) -> None:
        if self._superfluous:
            self._file(self._superfluous.popleft()).unlink(missing_ok=True)

    # Reading

    def inputs(self, first: int = 0) -> Iterator[tuple[int, Input]]:
        """The committed inputs from number ``first`` on with their numbers, without those in quarantine.

        Raises `UserError` if one is damaged or not there.
        """
        if not self._firsts[0] <= first <= self._durable:
            found = f"it has the inputs from {self._firsts[0]} up to {self._durable}"
            raise damaged(self.path, f"the run continues with input {first}, but {found}")
        for start, end in zip(self._firsts, [*self._firsts[1:], self._durable], strict=True):
            if end > first:
                for number, given in Segment(self._file(start), start).inputs(first, end):
                    if number not in self.quarantine.inputs:
                        yield number, given

    # The end

    def close(self) -> None:
        """Closes the file; idempotent. Inputs that are not committed are dropped."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = -1

    def discard(self) -> None:
        """Closes the journal of a finished run and deletes it, unless it is to be kept."""
        self.close()
        if not self.keep:
            shutil.rmtree(self.path, ignore_errors=True)


# One file


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
