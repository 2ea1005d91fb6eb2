"""What an operator sees of a running server, and how to give it commands: files in the fleet's state folder.

The server writes ``status.json`` every few seconds (`cabafl deploy status`). A command (`cabafl deploy stop | export |
set`, or word of a device that was removed) is a JSON file that appears complete; the server removes it and writes the
answer beside it.
"""

import json
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cabafl.errors import UserError
from cabafl.files import as_json, copy_whole, lock, write_atomic

if TYPE_CHECKING:  # an operator's commands do not need torch
    from cabafl.deployment.server.dispatcher import Dispatcher
    from cabafl.lifecycle.run import Lifecycle

STATUS, COMMANDS, LOCK = "status.json", "commands", "server.lock"  # a running server holds the lock
STATUS_INTERVAL = 2.0  # seconds between two status files
ANSWER_TIMEOUT = 30.0  # seconds an operator waits
CommandKind = Literal["stop", "export", "set", "removed"]

# The status file


@dataclass(frozen=True)
class DeviceStatus:
    """One device of the status file."""

    device: int
    online: bool
    samples: int
    job: int | None
    slot: int | None
    since: float | None  # when the job was sent, in seconds of the run
    seen: float | None  # last news of it, in seconds since the epoch
    jobs: int  # sent to it so far
    faults: int  # messages refused and jobs failed
    clipped: int  # uploads, features and claims that the defence has cut back
    declined: str | None  # why it does not take part, if it is connected


class StatusFile:
    """Writes the state of a run every few seconds; without a path it writes nothing."""

    def __init__(self, path: Path | None, run: "Lifecycle", dispatcher: "Dispatcher") -> None:
        self.path = path
        self.run = run
        self.dispatcher = dispatcher
        self._last_written = -STATUS_INTERVAL

    def update(self) -> None:
        """Writes the file if `STATUS_INTERVAL` has passed."""
        if time.perf_counter() - self._last_written > STATUS_INTERVAL:
            self.write("running" if self.dispatcher.started else "waiting for devices")

    def write(self, state: str) -> None:
        """Writes the file now. An OSError is ignored: it does not stop the run."""
        self._last_written = time.perf_counter()
        if self.path is None or self.run.folder is None:
            return
        engine, experiment, rows = self.dispatcher.engine, self.run.experiment, self.run.rows
        status = {
            "state": state,
            "updated": time.time(),
            "run": str(self.run.folder.path),
            "method": experiment.method.name,
            "seconds": self.dispatcher.now(),
            "wall_time": engine.limits.seconds,
            "version": engine.version,
            "uploads": engine.ledger.uploads,
            "losses": dict(engine.ledger.losses),
            "quarantined": self.dispatcher.journal.quarantine.count,
            "in_flight": len(engine.flights),
            "online": len(engine.present),
            "since_upload": self.dispatcher.since_upload,
            "metric": engine.metrics[0].info.described(),
            "value": rows[-1].value if rows else None,
            "averaged_value": rows[-1].averaged_value if rows else None,
            "devices": [asdict(line) for line in self._devices()],
        }
        with suppress(OSError):
            write_atomic(self.path, as_json(status))

    def _devices(self) -> Iterator[DeviceStatus]:
        engine = self.dispatcher.engine
        flights = {flight.device: flight for flight in engine.flights.values()}
        for device in range(len(engine.sizes)):
            flight = flights.get(device)
            yield DeviceStatus(
                device,
                device in engine.present,
                int(engine.sizes[device]),
                None if flight is None else flight.number,
                None if flight is None else flight.slot,
                None if flight is None else flight.started,
                self.dispatcher.seen.get(device),
                int(engine.selections[device]),
                self.dispatcher.faults[device],
                sum(engine.defence.counts.get(device, {}).values()),
                self.dispatcher.declined.get(device),
            )


def read_status(path: Path) -> dict[str, Any]:
    """The last status written by a server; raises `UserError` if there is none."""
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no server has run here yet (`cabafl deploy server`)") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if not isinstance(status, dict):
        raise UserError(f"{path}: not a status file")
    return status


# Commands


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
        """The commands that have come since the last call, oldest first."""
        if self.folder is None:
            return []
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


def record_removal(state: Path, devices: Iterable[int]) -> None:
    """Lets the server that runs on a fleet, if there is one, write to its journal that devices were shut out."""
    if is_running(state / LOCK):
        send_command(state / COMMANDS, "removed", {"devices": sorted(devices)})


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
