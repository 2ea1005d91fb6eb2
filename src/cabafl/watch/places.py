"""Reads files below the folders that are watched, and nothing else.

A path is opened step by step from its root, and no step follows a symbolic link. Only plain files are read, and only as
much of them as a run folder can have.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO

LARGEST_FILE = 32 << 20  # bytes of a file that is read as a whole
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe does not block


@dataclass(frozen=True)
class Place:
    """A folder below a root: the root's real path, and the names on the way from there."""

    root: Path
    parts: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Its path, for messages and for commands of the operator."""
        return self.root.joinpath(*self.parts)

    @property
    def name(self) -> str:
        """What it is called on the page: the way from the root, or the root's name."""
        return _shown("/".join(self.parts) or self.root.name or str(self.root))

    @property
    def id(self) -> str:
        """16 hexadecimal digits that stand for the path."""
        return blake2b(os.fsencode(self.path), digest_size=8).hexdigest()

    def below(self, *names: str) -> "Place":
        """A folder inside."""
        return Place(self.root, (*self.parts, *names))

    @contextlib.contextmanager
    def _folder(self) -> Iterator[int]:
        """A descriptor of the folder; raises OSError if it is gone or a link is on the way."""
        descriptor = os.open(self.root, _FLAGS | os.O_DIRECTORY)
        try:
            for part in self.parts:
                inner = os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def open(self, name: str) -> IO[bytes]:
        """Opens a plain file for reading, unbuffered; raises OSError for anything else."""
        with self._folder() as folder:
            descriptor = os.open(name, _FLAGS, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(f"{name}: not a plain file")
            return os.fdopen(descriptor, "rb", buffering=0)
        except BaseException:
            os.close(descriptor)
            raise

    def stat(self, name: str) -> os.stat_result | None:
        """Of a plain file; None if there is none."""
        try:
            with self._folder() as folder:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return None
        return found if stat.S_ISREG(found.st_mode) else None

    def read(self, name: str, limit: int = LARGEST_FILE) -> bytes | None:
        """The whole file; None if it cannot be read or is larger than ``limit``."""
        try:
            with self.open(name) as file:
                if os.fstat(file.fileno()).st_size > limit:
                    return None
                content = file.read(limit + 1)
        except OSError:
            return None
        return content if content is not None and len(content) <= limit else None

    def names(self) -> list[tuple[str, bool]]:
        """What the folder holds, sorted: names, and whether each is a folder. Links are left out. Empty if it is
        gone."""
        try:
            with self._folder() as folder, os.scandir(folder) as entries:
                found = [
                    (entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if not entry.is_symlink()
                ]
        except OSError:
            return []
        return sorted(found)

    def exists(self) -> bool:
        """Whether the folder is there, without a link on the way."""
        try:
            with self._folder():
                return True
        except OSError:
            return False


def _shown(name: str) -> str:
    """A name as text that any JSON reader accepts: bytes that are not UTF-8 become question marks."""
    return os.fsencode(name).decode("utf-8", errors="replace")
