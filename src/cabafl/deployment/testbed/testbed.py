"""A whole fleet on this machine: broker, device processes and server, with TCP, TLS, certificates and slow devices."""

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
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
from cabafl.processes.children import LOOPBACK, Child, Children, free_ports
from cabafl.recording.folder import SUMMARY
from cabafl.toml import toml_value

RUN, FLEET, LOGS = "run", "fleet", "logs"
HEARTBEAT = 10  # seconds
WALL_TIME = 600.0  # seconds


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
        fleet = self._fleet(experiment)
        if is_running(fleet.state / LOCK):
            raise UserError(f"--out = {self.path}: `cabafl deploy local` runs there; accepted: another folder")
        with ExitStack() as stack:
            children = stack.enter_context(Children(self.path / LOGS))
            start_broker(children, fleet)
            devices = [start_device(children, device) for device in fleet.devices()]
            for child in devices:  # all at once, then the broker
                stack.callback(child.process.terminate)
            station = Station(self.run, log, fleet.state / STATUS, fleet.state / COMMANDS, listener)
            return serve(experiment, MqttFleet(fleet), station)

    def _fleet(self, experiment: Experiment) -> FleetFolder:
        folder = self.path / FLEET
        if folder.exists():
            return FleetFolder.load(folder)
        [port] = free_ports(1)
        fleet = make_fleet(folder, FleetSettings(ip=(LOOPBACK,), port=port, listen=LOOPBACK), self.devices)
        for device, more in zip(fleet.devices(), paces(experiment, self.devices, self.scale), strict=True):
            lines = {"server": device.server, "id": device.id, "partition-id": device.partition, **more}
            if experiment.data.root is not None:
                lines["root"] = experiment.data.root
            text = "".join(f"{key} = {toml_value(value)}\n" for key, value in lines.items())
            (device.folder / DEVICE).write_text(text + "\n[terms]\nlabels = true\n", encoding="utf-8")
        return fleet


def with_defaults(experiment: Experiment, devices: int) -> Experiment:
    """Fills in what the experiment leaves open: 40 % of the devices like a Jetson Nano, 60 % like a Raspberry Pi; half
    of them train at the same time; `WALL_TIME` seconds."""
    fleet, run = experiment.fleet, experiment.run
    if not fleet.model_fields_set & {"participation", "slots"}:
        fleet = fleet.model_copy(update={"participation": 0.5})
    if fleet.tiers is None:
        fast = round(0.4 * devices)
        fleet = fleet.model_copy(update={"tiers": {"high": fast, "low": devices - fast}})
    if run.wall_time is None and run.max_dispatches is None:
        run = run.model_copy(update={"wall_time": WALL_TIME})
    return experiment.model_copy(update={"fleet": fleet, "run": run})


def paces(experiment: Experiment, devices: int, scale: float) -> list[Mapping[str, Any]]:
    """Minimum seconds per job, power in watts and heartbeat of each device, as lines of ``device.toml``."""
    fleet = simulated_fleet(experiment, np.ones(devices, dtype=np.int64), 0)
    watts = fleet.compute_watts.tolist()
    return [
        {"pace": fleet.job(device)[0] / scale, "watts": watts[device], "heartbeat": HEARTBEAT}
        for device in range(devices)
    ]


def start_device(children: Children, device: Device) -> Child:
    """Starts a device process; its output goes to ``device-ID.log``."""
    command = [sys.executable, "-P", "-m", "cabafl", "deploy", "device", str(device.folder)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return children.start(f"device-{device.id}", command, environment, device.folder)
