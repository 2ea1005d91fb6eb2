"""Files that are complete or untouched: atomic writes, locks, and what a full disk means for a run."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from cabafl.errors import RunStopped, UserError


class Busy(UserError):
    """Another process holds the lock."""


def sync_folder(path: Path) -> None:
    """Returns when the names in a folder are on disk: files created, renamed and deleted. Does nothing on a file system
    that cannot."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: bytes) -> None:
    """Writes the whole file or, on an error, leaves it as it was; returns when it is on disk."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def copy_whole(source: Path, target: Path) -> None:
    """Copies the whole file or, on an error, leaves ``target`` as it was."""
    temporary = target.with_name(f".{target.name}.part")
    try:
        shutil.copyfile(source, temporary)
        temporary.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def lock(file: IO[Any], busy: str, patience: float = 0.0) -> None:
    """Takes an exclusive lock; raises `Busy` with that text if another process still holds it after
    ``patience`` seconds.

    The lock ends when the file is closed or the process ends. On a file system without locks this does nothing.
    """
    give_up = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                raise Busy(busy) from None
            time.sleep(0.1)
        except OSError:
            return
        else:
            return


def as_json(value: Mapping[str, Any]) -> bytes:
    """Indented JSON with a final newline."""
    return (json.dumps(value, indent=2) + "\n").encode()


def cannot_record(error: OSError, path: Path) -> RunStopped:
    """The error that ends a run whose files cannot be written."""
    reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or str(error))
    return RunStopped(f"{path}: the run stops because it cannot be recorded: {reason}")
