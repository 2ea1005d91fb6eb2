"""Commands of an operator to a running server, through files in the fleet's state folder.

A command is a JSON file that appears complete; the server removes it and writes the answer beside it.
"""

import json
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cabafl.errors import UserError
from cabafl.files import as_json, copy_whole, lock, write_atomic

COMMANDS, LOCK = "commands", "server.lock"  # in the fleet's state folder; a running server holds the lock
CHECK_INTERVAL = 0.5  # seconds between two looks for commands
ANSWER_TIMEOUT = 30.0  # seconds an operator waits
CommandKind = Literal["stop", "export", "set"]


@dataclass(frozen=True)
class Command:
    """One command, as found in its file."""

    id: str
    kind: str
    values: dict[str, Any]


class CommandBox:
    """The server's side. Without a folder there are no commands."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._looked = 0.0
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._clear(folder)

    def _clear(self, folder: Path) -> None:
        """Nobody waits for what an earlier server has left: an old command must not end a new run."""
        for path in folder.iterdir():
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > ANSWER_TIMEOUT:
                    path.unlink()

    def take(self) -> list[Command]:
        """The commands that have come since the last call, oldest first; looks every `CHECK_INTERVAL` seconds."""
        if self.folder is None or time.monotonic() - self._looked < CHECK_INTERVAL:
            return []
        self._looked = time.monotonic()
        return [self._read(path) for path in sorted(self.folder.glob("*.command.json"))]

    def _read(self, path: Path) -> Command:
        name = path.name.removesuffix(".command.json")
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            return Command(name, str(entry["kind"]), dict(entry["values"]))
        except (OSError, ValueError, KeyError, TypeError):
            return Command(name, "file that is not a command", {})
        finally:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """The server ends: refuses what it will not carry out."""
        self._looked = -CHECK_INTERVAL
        for command in self.take():
            self.answer(command, False, f"{command.kind}: the server has ended")

    def answer(self, command: Command, ok: bool, text: str) -> None:
        """Tells the operator what became of a command."""
        if self.folder is not None:
            with suppress(OSError):
                write_atomic(self.folder / f"{command.id}.answer.json", as_json({"ok": ok, "text": text}))

    def attachment(self, command: Command) -> Path:
        """Where a file for the operator goes."""
        assert self.folder is not None
        return self.folder / f"{command.id}.attachment"


def is_running(lock_file: Path) -> bool:
    """Whether a server holds this lock."""
    if not lock_file.exists():
        return False
    with lock_file.open("r") as file:
        try:
            lock(file, "")
        except UserError:
            return True
    return False


def send_command(folder: Path, kind: CommandKind, values: dict[str, Any], out: Path | None = None) -> str:
    """The operator's side: gives a command to the running server and waits for its answer. A file that comes with the
    answer is moved to ``out``."""
    name = f"{time.time_ns()}-{secrets.token_hex(4)}"
    path, reply = folder / f"{name}.command.json", folder / f"{name}.answer.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, as_json({"kind": kind, "values": values}))
    except OSError as error:
        raise UserError(f"{kind}: {folder}: cannot be written: {error.strerror or error}") from None
    try:
        _wait_for(reply, kind, folder.parent / LOCK)
    finally:
        path.unlink(missing_ok=True)
    answer = json.loads(reply.read_text(encoding="utf-8"))
    reply.unlink()
    if not answer["ok"]:
        raise UserError(str(answer["text"]))
    if out is not None:
        _take(folder / f"{name}.attachment", out)
    return str(answer["text"])


def _take(attachment: Path, out: Path) -> None:
    try:
        copy_whole(attachment, out)
    except OSError as error:
        raise UserError(f"--out = {out}: cannot be written: {error.strerror or error}") from None
    finally:
        attachment.unlink(missing_ok=True)


def _wait_for(reply: Path, kind: CommandKind, lock_file: Path) -> None:
    deadline = time.monotonic() + ANSWER_TIMEOUT
    while not reply.exists():
        running = is_running(lock_file)
        if not running and not reply.exists():
            raise UserError(f"{kind}: the server has ended without an answer; see its log")
        if time.monotonic() > deadline:
            raise UserError(f"{kind}: the server has not answered for {ANSWER_TIMEOUT:g} s; see its log")
        time.sleep(0.1)
