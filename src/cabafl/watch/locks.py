"""Which files a process holds a lock on, without taking one: a lock taken here could refuse a run that begins."""

import os
from pathlib import Path

LOCKS = Path("/proc/locks")


class Locks:
    """The exclusive locks of this machine, as they were at the last look. ``known`` is False where the system does not
    tell."""

    def __init__(self) -> None:
        self.known = False
        self._held: frozenset[tuple[int, int, int]] = frozenset()

    def look(self) -> None:
        """Reads the table again."""
        try:
            lines = LOCKS.read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError):
            self.known, self._held = False, frozenset()
            return
        self.known, self._held = True, frozenset(filter(None, map(_parsed, lines)))

    def holds(self, inode: tuple[int, int] | None) -> bool:
        """Whether a process holds the file with this device and number."""
        if inode is None:
            return False
        device, number = inode
        return (os.major(device), os.minor(device), number) in self._held


def _parsed(line: str) -> tuple[int, int, int] | None:
    """``1: FLOCK  ADVISORY  WRITE 8229 fe:00:2146325 0 EOF``: device and inode; None for other locks."""
    words = line.split()
    try:
        if words[1] != "FLOCK" or words[3] != "WRITE":
            return None
        major, minor, inode = words[5].split(":")
        return int(major, 16), int(minor, 16), int(inode)
    except (IndexError, ValueError):
        return None
