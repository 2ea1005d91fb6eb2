"""Follows a file that a run appends to."""

import os
from typing import IO

from cabafl.watch.places import Place

CHUNK = 2 << 20  # bytes per read
LONGEST_LINE = 8 << 20  # bytes; a file with a longer line is not the record of a run
MARK = 256  # bytes before the position that are compared at each look


class Rewound(Exception):
    """The file is not the one that was read before, or no longer begins with what was read."""


class Tail:
    """Reads complete lines from where the last call ended. A file that was truncated, replaced or written anew up to
    the position raises `Rewound` once, and is then read from its beginning."""

    def __init__(self, place: Place, name: str) -> None:
        self.place = place
        self.name = name
        self.position = 0
        self.size = 0  # of the file, at the last look
        self.changed = 0.0  # when it was last written, seconds since 1970
        self.inode: tuple[int, int] | None = None  # device and number
        self._mark = b""

    @property
    def share(self) -> float:
        """How much of the file was read, 0 to 1."""
        return min(1.0, self.position / self.size) if self.size else 1.0

    def restart(self) -> None:
        """Reads the file from its beginning again."""
        self.position, self._mark = 0, b""

    def look(self) -> bool:
        """Whether there is more to read. Raises `Rewound`; a file that is gone counts as an empty one."""
        found = self.place.stat(self.name)
        if found is None:
            self.size = 0
            self._begin_again(None)
            return False
        self.size, self.changed = found.st_size, found.st_mtime
        inode = (found.st_dev, found.st_ino)
        if self.inode is not None and (inode != self.inode or self.size < self.position):
            self._begin_again(inode)
        self.inode = inode
        return self.size > self.position

    def lines(self) -> tuple[bytes, int]:
        """The next complete lines, about `CHUNK` bytes or one long line, and the position of their first byte. Empty if
        there is no complete line yet."""
        try:
            with self.place.open(self.name) as file:
                self._compare(file)
                return self._read(file)
        except OSError:
            return b"", self.position

    def piece(self, start: int, length: int) -> bytes:
        """Bytes that were read before; empty if they are gone."""
        try:
            with self.place.open(self.name) as file:
                return os.pread(file.fileno(), length, start)
        except OSError:
            return b""

    def _read(self, file: IO[bytes]) -> tuple[bytes, int]:
        start, size = self.position, CHUNK
        while True:
            content = os.pread(file.fileno(), size, start)
            end = content.rfind(b"\n") + 1
            if end or len(content) < size:
                break
            if size >= LONGEST_LINE:
                self._pass(content)
                return b"\n", start  # not a line of ours: it is skipped as a damaged one, and not looked into
            size *= 4
        content = content[:end]
        if content:
            self._pass(content)
        return content, start

    def _pass(self, content: bytes) -> None:
        self.position += len(content)
        self._mark = (self._mark + content[-MARK:])[-MARK:]

    def _compare(self, file: IO[bytes]) -> None:
        found = os.fstat(file.fileno())
        inode = (found.st_dev, found.st_ino)
        before = os.pread(file.fileno(), len(self._mark), self.position - len(self._mark))
        if before != self._mark or (self.inode is not None and inode != self.inode):
            self._begin_again(inode)
        self.inode = inode

    def _begin_again(self, inode: tuple[int, int] | None) -> None:
        had = self.position
        self.position, self._mark, self.inode = 0, b"", inode
        if had:
            raise Rewound
