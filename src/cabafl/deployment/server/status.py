"""The status file of a running server, shown by `cabafl deploy status`."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cabafl.deployment.server.dispatcher import Dispatcher
from cabafl.errors import UserError
from cabafl.files import as_json, write_atomic
from cabafl.lifecycle.run import Lifecycle

STATUS = "status.json"
INTERVAL = 2.0  # seconds between two status files


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

    def __init__(self, path: Path | None, run: Lifecycle, dispatcher: Dispatcher) -> None:
        self.path = path
        self.run = run
        self.dispatcher = dispatcher
        self._last_written = -INTERVAL

    def update(self) -> None:
        """Writes the file if `INTERVAL` has passed."""
        if time.perf_counter() - self._last_written > INTERVAL:
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
            "quarantined": self.dispatcher.journal.quarantined,
            "in_flight": len(engine.flights),
            "online": len(engine.present),
            "since_upload": self.dispatcher.since_upload,
            "accuracy": rows[-1].accuracy if rows else None,
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
