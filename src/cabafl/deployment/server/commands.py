"""Commands of an operator to a running server, through files in the fleet's state folder.

A command is a JSON file that appears complete; the server removes it and writes the answer beside it.
"""

import json
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cabafl.errors import UserError
from cabafl.files import as_json, lock, write_atomic

COMMANDS = "commands"
CHECK_INTERVAL = 0.5  # seconds between two looks for commands
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

    def take(self) -> list[Command]:
        """The commands that have come since the last call, oldest first; looks every `CHECK_INTERVAL` seconds."""
        if self.folder is None or time.monotonic() - self._looked < CHECK_INTERVAL:
            return []
        self._looked = time.monotonic()
        found = []
        for path in sorted(self.folder.glob("*.command.json")):
            with suppress(OSError, ValueError, KeyError, TypeError):
                entry = json.loads(path.read_text(encoding="utf-8"))
                found.append(
                    Command(path.name.removesuffix(".command.json"), str(entry["kind"]), dict(entry["values"]))
                )
            path.unlink(missing_ok=True)
        return found

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


def send_command(
    folder: Path, kind: CommandKind, values: dict[str, Any], out: Path | None = None, seconds: float = 30.0
) -> str:
    """The operator's side: gives a command to the running server and waits for its answer. A file that comes with the
    answer is moved to ``out``."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{time.time_ns()}-{secrets.token_hex(4)}"
    path, reply = folder / f"{name}.command.json", folder / f"{name}.answer.json"
    write_atomic(path, as_json({"kind": kind, "values": values}))
    deadline = time.monotonic() + seconds
    while not reply.exists():
        if time.monotonic() > deadline:
            path.unlink(missing_ok=True)
            raise UserError(f"{kind}: the server has not answered for {seconds:g} s; see its log")
        time.sleep(0.1)
    answer = json.loads(reply.read_text(encoding="utf-8"))
    reply.unlink()
    if not answer["ok"]:
        raise UserError(str(answer["text"]))
    if out is not None:
        shutil.move(folder / f"{name}.attachment", out)
    return str(answer["text"])
