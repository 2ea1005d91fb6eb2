"""A fleet folder that is watched: what the server of its real devices says."""

import time
from pathlib import Path
from typing import Any

from cabafl.deployment.folder.layout import FleetFolder
from cabafl.deployment.server.operator import LOCK, STATUS
from cabafl.watch.facts import read_json
from cabafl.watch.locks import Locks
from cabafl.watch.places import Place

STATE = "state"
OLD = 30.0  # seconds after which a status file tells nothing about this moment
DEVICE_KEYS = ("device", "online", "samples", "job", "slot", "since", "seen", "jobs", "faults", "clipped", "declined")
STATUS_KEYS = (
    *("state", "updated", "seconds", "wall_time", "version", "uploads", "losses", "quarantined", "in_flight"),
    *("online", "since_upload"),
)


class WatchedFleet:
    """Reads ``state/status.json`` again whenever it has changed."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.id = place.id
        self.running = False  # a server holds the lock
        self.status: dict[str, Any] = {}
        self._state = place.below(STATE)
        self._version: tuple[int, int] | None = None

    @property
    def run_path(self) -> str:
        """The folder of the run that the server last worked on, as the server names it."""
        run = self.status.get("run")
        return str(Path(run)) if isinstance(run, str) else ""

    @property
    def live(self) -> bool:
        """Whether the status is that of this moment."""
        updated = self.status.get("updated")
        return self.running and isinstance(updated, int | float) and time.time() - updated < OLD

    def follow(self, locks: Locks) -> None:
        """Takes in what has changed."""
        lock = self._state.stat(LOCK)
        self.running = lock is not None and locks.holds((lock.st_dev, lock.st_ino))
        found = self._state.stat(STATUS)
        version = None if found is None else (found.st_ino, found.st_mtime_ns)
        if version != self._version:
            self._version = version
            self.status = read_json(self._state, STATUS) or {}

    def folder(self) -> FleetFolder:
        """For the operator's commands; raises `UserError` if it is none."""
        return FleetFolder.load(self.place.path)

    def row(self, run: str | None) -> dict[str, Any]:
        """The fleet in the overview."""
        return {"id": self.id, "name": self.place.name, "running": self.running, "run": run}

    def devices(self) -> list[dict[str, Any]]:
        """What the server says of each device."""
        found = self.status.get("devices")
        lines = found if isinstance(found, list) else []
        return [line for line in lines if isinstance(line, dict) and isinstance(line.get("device"), int)]

    def described(self, run: str | None) -> dict[str, Any]:
        """The fleet on its page."""
        lines, removed = self.devices(), self._removed()
        columns: dict[str, list[Any]] = {key: [line.get(key) for line in lines] for key in DEVICE_KEYS}
        columns["removed"] = [line["device"] in removed for line in lines]
        columns["declined"] = [None if text is None else str(text)[:300] for text in columns["declined"]]
        return {
            **self.row(run),
            **{key: self.status.get(key) for key in STATUS_KEYS},
            "devices": columns,
            "actions": {"model": bool(self.status), "stop": self.running, "remove": True},
        }

    def _removed(self) -> set[int]:
        return {int(name) for name, folder in self.place.below("revoked").names() if folder and name.isdecimal()}
