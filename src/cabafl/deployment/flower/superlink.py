"""A fleet's SuperLink as the transport of a run."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from cabafl.deployment.flower.admission import admit, server_link
from cabafl.deployment.flower.grid import FleetGrid, open_grid, reopen_grid
from cabafl.deployment.flower.internals import Halted, RunLost, Ticket
from cabafl.deployment.folder.layout import FleetFolder
from cabafl.deployment.server.carrier import TemporaryFailure
from cabafl.files import lock

TICKET = "run.json"
LOCK = "server.lock"


class SuperLink:
    """See `server.driver.Transport`. While the run lasts its ticket is in the fleet's state folder."""

    def __init__(self, fleet: FleetFolder) -> None:
        self.fleet = fleet
        self.path = fleet.state / TICKET
        self.grid: FleetGrid | None = None

    def nodes(self) -> Mapping[int, int]:
        """Locks the fleet for this process and admits its devices. Raises `UserError` if another server runs."""
        self._take_lock()
        return admit(self.fleet)

    def open(self, max_bytes: int, resumed: bool, again: bool = False) -> FleetGrid:
        """See `Transport.open`. Writes the ticket of a new run to disk, so that a restarted server can continue it."""
        link = server_link(self.fleet)
        ticket = self._ticket() if resumed and not again else None
        if self.grid is not None:
            self.grid.close()
        self.grid = None
        if ticket is not None:
            with suppress(RunLost):
                self.grid = reopen_grid(link, ticket, max_bytes)
        if self.grid is None:
            self.grid = open_grid(link, max_bytes)
            _write_private(self.path, json.dumps(asdict(self.grid.ticket)).encode())
        if resumed:
            self.grid.settle()
        return self.grid

    def interrupt(self) -> None:
        """See `Transport.interrupt`."""
        if self.grid is not None:
            self.grid.interrupt()

    def close(self, finished: bool) -> None:
        """See `Transport.close`. A finished run is ended at the SuperLink, if that can be reached."""
        if self.grid is None:
            return
        if finished:
            with suppress(RunLost, TemporaryFailure, Halted):
                self.grid.finish()
            self.path.unlink(missing_ok=True)
        self.grid.close()

    def _take_lock(self) -> None:
        """Two servers on one fleet would take each other's replies."""
        self.fleet.state.mkdir(exist_ok=True)
        self._lock = (self.fleet.state / LOCK).open("w")  # held until this process ends
        lock(self._lock, f"{self.fleet.path}: another server runs on this fleet; accepted: one at a time")

    def _ticket(self) -> Ticket | None:
        try:
            return Ticket(**json.loads(self.path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None


def _write_private(path: Path, content: bytes) -> None:
    """Writes a file with mode 0600 from its first byte on, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    temporary.replace(path)
