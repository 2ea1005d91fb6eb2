"""A fleet folder as the network of a run: see `server.carrier.Network`."""

from collections.abc import Sequence
from typing import IO

from cabafl.deployment.folder.layout import SERVER, Device, FleetFolder
from cabafl.deployment.log import Log
from cabafl.deployment.mqtt.carrier import MqttCarrier
from cabafl.deployment.mqtt.link import Account, Credentials
from cabafl.deployment.server.carrier import RunOnFleet
from cabafl.deployment.server.operator import LOCK
from cabafl.files import lock

LOCK_PATIENCE = 2.0  # seconds: `operator.is_running` holds the lock for a moment
SESSION = 7 * 86400  # seconds for which the broker keeps uploads for a server that is away
WINDOW = 50  # uploads on their way to the server that it has not journaled yet
KEEPALIVE = 30  # seconds


class MqttFleet:
    """The devices of a fleet folder, through the folder's broker."""

    def __init__(self, fleet: FleetFolder) -> None:
        self.fleet = fleet
        self._lock: IO[str] | None = None  # held until this process ends

    @property
    def devices(self) -> Sequence[int]:
        """See `Network`."""
        return sorted(self.fleet.device_ids())

    def open(self, run: RunOnFleet, log: Log) -> MqttCarrier:
        """See `Network`."""
        if self._lock is None:
            self.fleet.state.mkdir(exist_ok=True)
            file = (self.fleet.state / LOCK).open("w")
            busy = f"{self.fleet.path}: another server runs on this fleet; accepted: one at a time"
            lock(file, busy, LOCK_PATIENCE)
            self._lock = file
        return MqttCarrier(server_account(self.fleet), run, log, self.fleet.revoked_ids)


def server_account(fleet: FleetFolder) -> Account:
    """How the server of a fleet connects to its broker."""
    host, port = fleet.settings.endpoint
    files = Credentials(fleet.ca, fleet.certificate, fleet.key)
    return Account(host, port, SERVER, files, keepalive=KEEPALIVE, session=SESSION, window=WINDOW)


def device_account(device: Device) -> Account:
    """How a device connects to its broker."""
    host, port = device.endpoint
    return Account(host, port, device.user, Credentials(device.ca, device.certificate, device.key), device.heartbeat)
