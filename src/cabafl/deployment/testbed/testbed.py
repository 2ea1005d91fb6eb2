"""A whole fleet on this machine: broker, device processes and server, with TCP, TLS, certificates and slow devices."""

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cabafl.assembly import make_fleet as simulated_fleet
from cabafl.config import Experiment
from cabafl.deployment.broker import start_broker
from cabafl.deployment.folder.layout import DEVICE, Device, FleetFolder, FleetSettings
from cabafl.deployment.folder.provision import make_fleet
from cabafl.deployment.log import Log
from cabafl.deployment.mqtt.fleet import MqttFleet
from cabafl.deployment.server.operator import COMMANDS, LOCK, STATUS, is_running
from cabafl.deployment.server.serve import Station, serve
from cabafl.errors import UserError
from cabafl.lifecycle.run import Listener
from cabafl.names import is_function
from cabafl.power import BoardName
from cabafl.processes.children import LOOPBACK, Child, Children, answers, free_ports
from cabafl.recording.folder import SUMMARY
from cabafl.toml import toml_value

RUN, FLEET, LOGS = "run", "fleet", "logs"
HEARTBEAT = 10  # seconds
WALL_TIME = 600.0  # seconds
PORT_PATIENCE = 10.0  # seconds
POWER_KEYS = {"power", "compute_watts", "idle_watts", "tier_power", "tier_compute_watts", "tier_idle_watts"}
IMITATED: dict[str, BoardName] = {"high": "jetson-nano", "low": "raspberry-pi-4"}  # by the tier that has its speed


@dataclass(frozen=True)
class Testbed:
    """A folder with a fleet, the logs of its processes, and the run. ``scale`` divides the job times of the tiers."""

    path: Path
    devices: int
    scale: float

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.path / RUN

    def serve(self, experiment: Experiment, listener: Listener | None, log: Log) -> dict[str, Any] | None:
        """Starts all processes, runs the experiment, stops all processes. Continues an interrupted run; returns None if
        the run is already complete."""
        if (self.run / SUMMARY).exists():
            return None
        experiment = with_defaults(experiment, self.devices)
        with self.standing(experiment) as fleet:
            return serve(experiment, MqttFleet(fleet.folder), fleet.station(self.run, log, listener))

    @contextmanager
    def standing(self, experiment: Experiment) -> Iterator["LocalFleet"]:
        """Inside the context, broker and devices run. ``experiment`` sets the devices' speeds and power when the fleet
        is made; later ones do not change it."""
        folder = self._fleet(experiment)
        if is_running(folder.state / LOCK):
            raise UserError(f"--out = {self.path}: `cabafl deploy local` runs there; accepted: another folder")
        with ExitStack() as stack:
            children = stack.enter_context(Children(self.path / LOGS))
            _wait_for_free_port(folder.settings.port)
            start_broker(children, folder)
            fleet = LocalFleet(folder, children)
            stack.callback(fleet.stop)
            yield fleet

    def _fleet(self, experiment: Experiment) -> FleetFolder:
        """The fleet folder, made under another name first: a folder that exists has the settings of its devices."""
        folder = self.path / FLEET
        if folder.exists():
            return FleetFolder.load(folder)
        lines_of = paces(experiment, self.devices, self.scale)
        unfinished = self.path / f".{FLEET}"
        shutil.rmtree(unfinished, ignore_errors=True)
        [port] = free_ports(1)
        fleet = make_fleet(unfinished, FleetSettings(ip=(LOOPBACK,), port=port, listen=LOOPBACK), self.devices)
        for device, more in zip(fleet.devices(), lines_of, strict=True):
            lines = {"server": device.server, "id": device.id, "partition-id": device.partition, **more}
            if experiment.data.root is not None:
                lines["root"] = str(Path(experiment.data.root).expanduser().resolve())  # devices run elsewhere
            if ":" in experiment.model.name or is_function(experiment.data.dataset):
                lines["allow_modules"] = True  # they are the user's own, as the devices are
            text = "".join(f"{key} = {toml_value(value)}\n" for key, value in lines.items())
            (device.folder / DEVICE).write_text(text + "\n[terms]\nlabels = true\n", encoding="utf-8")
        unfinished.rename(folder)
        return FleetFolder.load(folder)


class OpenFleet:
    """A fleet whose broker and devices run, here or elsewhere: one run after the other can be served on it."""

    def __init__(self, folder: FleetFolder) -> None:
        self.folder = folder

    def station(self, out: Path, log: Log, listener: Listener | None) -> Station:
        """Where the server of a run in ``out`` works."""
        return Station(out, log, self.folder.state / STATUS, self.folder.state / COMMANDS, listener)

    def revive(self, log: Log) -> None:
        """Starts devices again whose process has ended: the next run waits for all of them. Does nothing for devices
        elsewhere."""


class LocalFleet(OpenFleet):
    """Device processes of this machine that stay up from run to run."""

    def __init__(self, folder: FleetFolder, children: Children) -> None:
        super().__init__(folder)
        self._children = children
        self._devices = {device.id: start_device(children, device) for device in folder.devices()}
        self._starts = Counter(self._devices.keys())

    def revive(self, log: Log) -> None:
        """See `OpenFleet`."""
        for device in self.folder.devices():
            child = self._devices[device.id]
            if child.process.poll() is not None:
                log.warn(f"its process has ended ({child.last_line()}); starts again, see {child.log}", device.id)
                self._starts[device.id] += 1
                name = f"device-{device.id}-{self._starts[device.id]}"
                self._devices[device.id] = start_device(self._children, device, name)

    def stop(self) -> None:
        """Asks all devices to end, at once and before the broker."""
        for child in self._devices.values():
            child.process.terminate()


def with_defaults(experiment: Experiment, devices: int) -> Experiment:
    """Fills in what the experiment leaves open: 40 % of the devices like a Jetson Nano, 60 % like a Raspberry Pi, with
    the watts of these boards; half of them train at the same time; `WALL_TIME` seconds. Tiers for another number of
    devices keep their shares."""
    fleet, run = experiment.fleet, experiment.run
    if not fleet.model_fields_set & {"participation", "slots"}:
        fleet = fleet.model_copy(update={"participation": 0.5})
    if fleet.tiers is None:
        fast = round(0.4 * devices)
        fleet = fleet.model_copy(update={"tiers": {"high": fast, "low": devices - fast}})
    elif not isinstance(fleet.tiers, str) and sum(fleet.tiers.values()) not in (0, devices):
        fleet = fleet.model_copy(update={"tiers": _scaled(fleet.tiers, devices)})
    if not fleet.model_fields_set & POWER_KEYS:
        fleet = fleet.model_copy(update={"tier_power": IMITATED})
    if run.wall_time is None and run.max_dispatches is None:
        run = run.model_copy(update={"wall_time": WALL_TIME})
    return experiment.model_copy(update={"fleet": fleet, "run": run})


def _scaled(counts: Mapping[str, int], devices: int) -> dict[str, int]:
    """The same shares of ``devices``, rounded by largest remainders."""
    exact = np.array(list(counts.values())) * devices / sum(counts.values())
    whole = np.floor(exact).astype(int)
    whole[np.argsort(whole - exact, kind="stable")[: devices - int(whole.sum())]] += 1
    return dict(zip(counts, whole.tolist(), strict=True))


def paces(experiment: Experiment, devices: int, scale: float) -> list[Mapping[str, Any]]:
    """Minimum seconds per job, power in watts and heartbeat of each device, as lines of ``device.toml``. Raises
    `UserError` if tiers and devices do not fit."""
    try:
        fleet = simulated_fleet(experiment, np.ones(devices, dtype=np.int64), 0)
    except ValueError as error:
        raise UserError(f"--devices = {devices}: {error}") from None
    power = zip(fleet.compute_watts.tolist(), fleet.idle_watts.tolist(), strict=True)
    return [
        {"pace": fleet.job(device)[0] / scale, "watts": watts, "idle_watts": idle, "sensor": False}
        | {"heartbeat": HEARTBEAT}
        for device, (watts, idle) in enumerate(power)
    ]


def start_device(children: Children, device: Device, name: str | None = None) -> Child:
    """Starts a device process; its output goes to ``NAME.log``, by default ``device-ID.log``. The user's own modules
    are found in the working folder, as in a simulation."""
    command = [sys.executable, "-P", "-m", "cabafl", "deploy", "device", str(device.folder)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return children.start(
        name or f"device-{device.id}", command, environment, Path.cwd() if device.allow_modules else device.folder
    )


def _wait_for_free_port(port: int) -> None:
    """The broker of a process that was killed a moment ago may still be ending."""
    deadline = time.monotonic() + PORT_PATIENCE
    while answers(port) and time.monotonic() < deadline:
        time.sleep(0.1)
