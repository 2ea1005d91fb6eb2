"""A fleet on loopback with real processes: broker, server, devices. Everything ends with the test."""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cabafl.assembly import make_server_task
from cabafl.config import load_experiment
from cabafl.deployment.broker import start_broker
from cabafl.deployment.folder.layout import DEVICE, FleetFolder, FleetSettings
from cabafl.deployment.folder.provision import make_fleet
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.server.operator import COMMANDS, STATUS, send_command
from cabafl.processes.children import LOOPBACK, Child, Children, free_ports

ROOT = Path(__file__).parents[2]
HEARTBEAT = 5  # seconds, the shortest there is
GONE_AFTER = 1.5 * HEARTBEAT + 10  # seconds of silence after which a device counts as gone
PATIENCE = 90.0  # seconds; much longer than needed on an idle machine
SETTINGS = [
    "data.train_limit=600",
    "data.test_limit=100",
    "data.partition=iid",
    "model.name=mlp",
    "training.epochs=1",
    "run.evaluate_every=5",
    "run.checkpoint_every=4",
    "run.wall_time=600",
    "deploy.keep_journal=true",
]


@cache
def feature_width() -> int:
    """Numbers in a feature vector of the model of `SETTINGS`."""
    return make_server_task(load_experiment(None, SETTINGS)).feature_width("activations")


@cache
def _greeting() -> Greeting:
    experiment = load_experiment(None, ["data.dataset=synthetic", "model.name=mlp"])
    return Greeting.of(experiment, make_server_task(experiment), 1)


def bare_greeting(weights: int) -> str:
    """For devices without samples, which look at the number of weights only."""
    return _greeting().model_copy(update={"weights": weights}).text()


@dataclass
class Bed:
    """A fleet and its processes, by name."""

    path: Path
    children: Children
    fleet: FleetFolder
    running: dict[str, Child] = field(default_factory=dict)
    run: str = "run"  # name of the run folder

    def start(self, name: str, *command: str) -> Child:
        """Starts a module; each start of a name has a log of its own."""
        count = sum(1 for log in (self.path / "logs").glob(f"{name}.*.log"))
        paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        words = {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
        child = self.children.start(f"{name}.{count}", [sys.executable, "-m", *command], words, self.path)
        self.running[name] = child
        return child

    def broker(self) -> None:
        self.running["broker"] = start_broker(self.children, self.fleet)

    def device(self, number: int, name: str | None = None) -> Child:
        """A device as users start it."""
        return self.start(name or f"device-{number}", "cabafl", "deploy", "device", self._folder(number))

    def odd(self, hows: Mapping[int, str], seconds: float = 0.5, name: str = "odd") -> Child:
        """Devices without samples in one process, and what each does: see `odd_device`."""
        words = [f"{self._folder(number)}={how}" for number, how in hows.items()]
        return self.start(name, "tests.deployment.odd_device", str(seconds), str(feature_width()), *words)

    def _folder(self, number: int) -> str:
        return str(self.fleet.device_folders()[number])

    def serve(self, *settings: str) -> Child:
        words = [*SETTINGS, *settings, "--out", str(self.path / self.run), "--quiet"]
        return self.start("server", "cabafl", "deploy", "server", str(self.fleet.path), *words)

    def signal(self, name: str, number: int) -> None:
        os.kill(self.running[name].process.pid, number)

    def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)
        self.running[name].process.wait()

    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.fleet.state / STATUS).read_text())
        except FileNotFoundError:
            found = {}
        if found.get("run") != str(self.path / self.run):
            return {"state": "none", "uploads": 0, "online": 0, "devices": []}
        return found

    def wait(self, what: str, condition: Callable[[dict[str, Any]], bool], seconds: float = PATIENCE) -> None:
        """Returns when the status fulfils the condition."""
        deadline = time.monotonic() + seconds
        while not condition(status := self.status()):
            server = self.running["server"]
            assert server.process.poll() in (None, 0), server.output()
            assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s: {status}\n{server.output()}"
            time.sleep(0.1)

    def wait_for_uploads(self, more: int, what: str = "uploads") -> None:
        """Returns when this many more have been counted."""
        before = self.status()["uploads"]
        self.wait(what, lambda status: status["uploads"] >= before + more)

    def command(self, kind: Any, **values: Any) -> str:
        """A command to the server, as `cabafl deploy` gives it."""
        return send_command(self.fleet.state / COMMANDS, kind, values)

    def end(self, seconds: float = PATIENCE) -> list[dict[str, Any]]:
        """Waits for the server to finish; returns the events of its run."""
        server = self.running["server"]
        assert server.process.wait(seconds) == 0, server.output()
        return read_events(self.path / self.run)

    def stop(self) -> list[dict[str, Any]]:
        """Ends the run as an operator does; returns its events."""
        self.command("stop", at_once=True)
        return self.end()


@contextmanager
def bed(path: Path, devices: int, pace: float = 0.5, **settings: Any) -> Iterator[Bed]:
    """A fleet whose broker runs. ``pace``: seconds per job of a real device."""
    [port] = free_ports(1)
    fleet = make_fleet(path / "fleet", FleetSettings(ip=(LOOPBACK,), port=port, listen=LOOPBACK, **settings), devices)
    for device in fleet.devices():
        text = f'server = "{device.server}"\nid = {device.id}\npartition-id = {device.id}\n'
        (device.folder / DEVICE).write_text(f"{text}pace = {pace}\nheartbeat = {HEARTBEAT}\n")
    with Children(path / "logs") as children:
        made = Bed(path, children, fleet)
        made.broker()
        yield made


def read_events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def device_of(events: list[dict[str, Any]]) -> dict[int, int]:
    """The device of each job."""
    return {event["job"]: event["device"] for event in events if event["event"] == "dispatch"}


def uploaders(events: list[dict[str, Any]]) -> Counter[int]:
    """Uploads by device."""
    devices = device_of(events)
    return Counter(devices[event["job"]] for event in events if event["event"] == "upload")


def losses(events: list[dict[str, Any]]) -> dict[int, Counter[str]]:
    """Reasons of lost jobs, by device."""
    devices, found = device_of(events), dict[int, Counter[str]]()
    for event in events:
        if event["event"] == "loss":
            found.setdefault(devices[event["job"]], Counter())[event["reason"]] += 1
    return found


def check_that_every_job_ends_once(events: list[dict[str, Any]], slots: int) -> None:
    """No job counts twice, none vanishes: what has not ended is under way at the end."""
    sent = Counter(event["job"] for event in events if event["event"] == "dispatch")
    ended = Counter(event["job"] for event in events if event["event"] in ("upload", "loss"))
    assert set(sent) == set(range(len(sent))), "every job is in the record"
    assert set(sent.values()) == {1}
    assert set(ended.values()) == {1}
    assert ended.keys() <= sent.keys()
    assert len(sent.keys() - ended.keys()) <= slots
