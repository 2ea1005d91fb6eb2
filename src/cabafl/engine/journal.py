"""The write-ahead log of a server of real devices: every input is on disk before it takes effect.

``journal.jsonl`` has one line per input; its arrays are in a separate safetensors file, which is written first.
``sent.jsonl`` records which message carries which job. A restarted server replays the inputs and looks up which jobs
were already sent, so that no upload counts twice and no job is lost.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from cabafl.engine.inputs import Input
from cabafl.errors import RunStopped, UserError
from cabafl.files import cannot_record, sync
from cabafl.recording.folder import JOURNAL
from cabafl.state import Decoder, Encoder


class Journal:
    """The journal of one run folder. ``keep``: keep all inputs on disk, for a later replay of the whole run."""

    def __init__(self, run: Path, keep: bool = False) -> None:
        self.path = run / JOURNAL
        self.path.mkdir(exist_ok=True)
        self.keep = keep
        self.length = sum(1 for _ in self._lines("journal.jsonl"))
        self._inputs = self._open("journal.jsonl")
        self._sent = self._open("sent.jsonl")

    def _open(self, name: str) -> IO[bytes]:
        """Opens a file for appending, after cutting off a torn last line."""
        path = self.path / name
        path.touch()
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)
        return path.open("ab")

    def _lines(self, name: str) -> Iterator[Any]:
        path = self.path / name
        if not path.exists():
            return
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                yield json.loads(line)
            except ValueError:
                raise UserError(f"{path}: damaged: a line is not JSON; remove the run folder to start again") from None

    def add(self, given: Input) -> None:
        """Appends an input and returns when it is on disk. Raises `RunStopped` if it cannot be written."""
        encoder = Encoder()
        tree = encoder.encode(given)
        file = None
        if encoder.arrays:
            file = f"input-{self.length}.safetensors"
            try:
                save_file({name: np.ascontiguousarray(a) for name, a in encoder.arrays.items()}, self.path / file)
                sync(self.path / file)
            except (OSError, SafetensorError) as error:
                raise _stopped(error, self.path) from error
        self._append(self._inputs, {"number": self.length, "input": tree, "file": file})
        self.length += 1

    def add_sent(self, job: int, message: str, network: str) -> None:
        """Records that a job was sent in this message over this network."""
        self._append(self._sent, {"job": job, "message": message, "network": network})

    def _append(self, file: IO[bytes], entry: dict[str, Any]) -> None:
        try:
            file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise _stopped(error, self.path) from error

    def inputs(self, first: int = 0) -> Iterator[Input]:
        """The inputs from number ``first`` on. Raises `UserError` if one cannot be read."""
        for entry in self._lines("journal.jsonl"):
            if entry["number"] < first:
                continue
            path = self.path / (entry["file"] or "")
            try:
                arrays = load_file(path) if entry["file"] else {}
                given: Input = Decoder(arrays).decode(entry["input"])
            except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
                raise UserError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
            yield given

    def sent(self, network: str) -> dict[int, str]:
        """The message of each job sent over this network; the last one if a job was sent several times."""
        return {e["job"]: e["message"] for e in self._lines("sent.jsonl") if e["network"] == network}

    def forget(self, first: int) -> None:
        """Deletes the arrays of all inputs before number ``first``, which a checkpoint now includes."""
        if not self.keep:
            for path in self.path.glob("input-*.safetensors"):
                if int(path.stem.removeprefix("input-")) < first:
                    path.unlink()

    def close(self) -> None:
        """Closes both files; idempotent."""
        for file in (self._inputs, self._sent):
            with suppress(OSError):
                file.close()

    def discard(self) -> None:
        """Closes the journal of a finished run and deletes it, unless it is to be kept."""
        self.close()
        if not self.keep:
            shutil.rmtree(self.path, ignore_errors=True)


def _stopped(error: Exception, path: Path) -> RunStopped:
    if not isinstance(error, OSError):  # safetensors reports the OSError as text only
        error = OSError(errno.ENOSPC if "No space" in str(error) else errno.EIO, str(error))
    return cannot_record(error, path)
