"""Files are complete or untouched, and one process at a time holds a lock."""

import errno
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cabafl.errors import UserError
from cabafl.files import as_json, cannot_record, lock, write_atomic


def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


HOLD = "import sys, time; from cabafl.files import lock; f = open(sys.argv[1]); lock(f, 'busy'); print(flush=True); "


def test_a_lock_is_exclusive_and_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    holder = subprocess.Popen([sys.executable, "-c", HOLD + "time.sleep(60)", str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    with path.open() as file:
        with pytest.raises(UserError, match="another process has it"):
            lock(file, "another process has it")
        holder.kill()
        began = time.monotonic()
        lock(file, "another process has it", patience=20.0)
        assert time.monotonic() - began < 15
    holder.wait()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    assert "the disk is full" in str(cannot_record(OSError(errno.ENOSPC, "x"), tmp_path))
    assert "Input/output error" in str(cannot_record(OSError(errno.EIO, "Input/output error"), tmp_path))


def test_json_ends_with_a_newline() -> None:
    assert as_json({"a": 1}) == b'{\n  "a": 1\n}\n'
