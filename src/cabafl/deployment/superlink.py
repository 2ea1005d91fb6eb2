"""A fleet's SuperLink as the network of a service."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from cabafl.deployment.admission import admit, server_link
from cabafl.deployment.fleet import Fleet
from cabafl.deployment.flower_internals import RunLost, Ticket
from cabafl.deployment.grid import FleetGrid, open_grid, reopen_grid

TICKET = "run.json"


class SuperLink:
    """See `service.Network`. The ticket of the run is in the fleet's state folder while the run lasts."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.path = fleet.state / TICKET
        self.grid: FleetGrid | None = None

    def nodes(self) -> Mapping[int, int]:
        """See `service.Network`."""
        return admit(self.fleet)

    def open(self, max_bytes: int, again: bool) -> tuple[FleetGrid, bool]:
        """See `service.Network`."""
        link = server_link(self.fleet)
        ticket = None if again else self._ticket()
        if self.grid is not None:
            self.grid.close()
        if ticket is not None:
            try:
                self.grid = reopen_grid(link, ticket, max_bytes)
            except RunLost:
                pass
            else:
                return self.grid, True
        self.grid = open_grid(link, max_bytes)
        _write_private(self.path, json.dumps(asdict(self.grid.ticket)).encode())
        return self.grid, False

    def forgets(self) -> type[Exception]:
        """See `service.Network`."""
        return RunLost

    def close(self, finished: bool) -> None:
        """See `service.Network`."""
        if self.grid is None:
            return
        if finished:
            with suppress(RunLost):  # ended already
                self.grid.finish()
            self.path.unlink(missing_ok=True)
        self.grid.close()

    def _ticket(self) -> Ticket | None:
        try:
            return Ticket(**json.loads(self.path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None


def _write_private(path: Path, content: bytes) -> None:
    """Readable by its owner only, from the first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    temporary.replace(path)
