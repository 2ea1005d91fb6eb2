"""The write-ahead log of a server of real devices: every input is on disk before it takes effect.

It consists of files that are only appended to (`engine.segment`). A new one begins with each checkpoint; files whose
inputs a checkpoint includes are deleted. A restarted server restores its checkpoint and replays the inputs after it.
What a replay leaves out is in the quarantine beside them (`engine.quarantine`).
"""

import os
import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cabafl.engine.inputs import Input
from cabafl.engine.quarantine import Quarantine
from cabafl.engine.segment import Segment, damaged, new_head, pack
from cabafl.engine.tensors import pieces, write_whole
from cabafl.errors import UserError
from cabafl.files import cannot_record, sync_folder
from cabafl.recording.folder import JOURNAL

SEGMENT_BYTES = 64 << 20  # a longer file is followed by a new one also between checkpoints


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
            write_whole(self._descriptor, head)
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
            for piece in pieces(self._pending):
                write_whole(self._descriptor, piece)
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
