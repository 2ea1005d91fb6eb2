"""Whole runs with real processes, TLS and keys: devices that die, lie, keep silent and join; a server and a SuperLink
that are killed; and a finished run that the simulator can follow."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed (extra `deploy`)")

from safetensors.numpy import load_file

from cabafl.assembly import assemble_server, engine_setup
from cabafl.config import load_experiment
from cabafl.deployment.folder.layout import DEVICE, FleetFolder, FleetSettings
from cabafl.deployment.folder.provision import make_fleet
from cabafl.deployment.testbed.programs import environment, start_proxy, start_superlink
from cabafl.deployment.testbed.testbed import has_proxy
from cabafl.engine.inputs import Arrived, Gathered, Joined
from cabafl.engine.journal import Journal
from cabafl.engine.virtual import VirtualEngine
from cabafl.execution.base import FeatureJob, Interrupt
from cabafl.processes.children import LOOPBACK, Child, Children, free_ports
from cabafl.recording.events import Event
from tests.scripted import ScriptedExecutor, timetable

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
SETTINGS = [
    "data.train_limit=600",
    "data.test_limit=100",
    "data.partition=iid",
    "model.name=mlp",
    "training.epochs=1",
    "run.evaluate_every=5",
    "run.checkpoint_every=7",
    "deploy.keep_journal=true",
]


@dataclass
class Bed:
    """A fleet on loopback; everything ends with the test."""

    path: Path
    children: Children
    fleet: FleetFolder
    running: dict[str, Child] = field(default_factory=dict)

    def start(self, name: str, *command: str) -> Child:
        words = {**environment(self.path), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        self.running[name] = self.children.start(name, [sys.executable, "-m", *command], words, self.path)
        return self.running[name]

    def device(self, number: int, how: str | None = None) -> Child:
        folder = str(self.fleet.device_folders()[number])
        if how is not None:
            return self.start(f"device-{number}", "tests.deployment.odd_device", folder, how)
        return self.start(f"device-{number}", "cabafl", "deploy", "device", folder)

    def serve(self, *settings: str) -> Child:
        words = [*SETTINGS, *settings, "--out", str(self.path / "run"), "--quiet"]
        return self.start("server", "cabafl", "deploy", "server", str(self.fleet.path), *words)

    def kill(self, name: str) -> None:
        os.kill(self.running[name].process.pid, signal.SIGKILL)
        self.running[name].process.wait()

    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.fleet.state / "status.json").read_text())
        except FileNotFoundError:
            return {"state": "none", "uploads": 0, "devices": []}
        return found

    def wait(self, what: str, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            server = self.running["server"]
            assert server.process.poll() in (None, 0), server.output()
            assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s: {self.status()}"
            time.sleep(0.2)

    def end(self, seconds: float) -> list[dict[str, Any]]:
        """Waits for the server; the events of its run."""
        server = self.running["server"]
        assert server.process.wait(seconds) == 0, server.output()
        return [json.loads(line) for line in (self.path / "run" / "events.jsonl").read_text().splitlines()]


def bed_of(path: Path, devices: int, pace: float) -> Bed:
    port, superlink_port = free_ports(2)
    settings = FleetSettings(ip=(LOOPBACK,), port=port, superlink_port=superlink_port, listen=LOOPBACK)
    fleet = make_fleet(path / "fleet", settings, devices)
    server = settings.address if has_proxy() else settings.superlink
    for device in fleet.devices():
        text = f'server = "{server}"\nid = {device.id}\npartition-id = {device.id}\npace = {pace}\nheartbeat = 10.0\n'
        (device.folder / DEVICE).write_text(text)
    bed = Bed(path, Children(path / "logs"), fleet)
    bed.running["superlink"] = start_superlink(bed.children, fleet)
    if has_proxy():
        bed.running["proxy"] = start_proxy(bed.children, fleet)
    return bed


@pytest.fixture
def beds(tmp_path: Path) -> Iterator[Callable[[int, float], Bed]]:
    made: list[Bed] = []

    def make(devices: int, pace: float) -> Bed:
        made.append(bed_of(tmp_path, devices, pace))
        return made[-1]

    yield make
    for bed in made:
        bed.children.stop()


def test_everything_that_can_go_wrong(beds: Callable[[int, float], Bed]) -> None:
    bed = beds(8, 1.0)
    for number in range(4):
        bed.device(number)
    odd = {4: "silent", 5: "nan", 6: "layout"}
    for number, how in odd.items():
        bed.device(number, how)
    settings = ["fleet.slots=4", "run.slot_timeout=60", "run.wall_time=130", "method.k=2", "deploy.start_devices=7"]
    bed.serve(*settings)
    bed.wait("the start", lambda: bed.status()["uploads"] >= 3, 90)

    bed.device(7)  # joins during the run
    bed.wait("training on device 0", lambda: bed.status()["devices"][0]["job"] is not None)
    bed.kill("device-0")

    time.sleep(3)
    bed.kill("server")
    before = bed.status()["uploads"]
    time.sleep(2)
    bed.serve(*settings)
    bed.wait("uploads after the server came back", lambda: bed.status()["uploads"] > before + 2)

    bed.kill("superlink")
    time.sleep(1)
    bed.running["superlink"] = start_superlink(bed.children, bed.fleet)
    before = bed.status()["uploads"]
    bed.wait("uploads after the SuperLink came back", lambda: bed.status()["uploads"] > before + 2)
    events = bed.end(240)

    assert all(np.isfinite(tensor).all() for tensor in load_file(bed.path / "run" / "model.safetensors").values())
    summary = json.loads((bed.path / "run" / "summary.json").read_text())
    assert summary["clock"] == "wall"
    sent = {event["job"]: event for event in events if event["event"] == "dispatch"}
    uploads = Counter(event["job"] for event in events if event["event"] == "upload")
    losses = {event["job"]: event["reason"] for event in events if event["event"] == "loss"}
    assert set(uploads.values()) == {1}, "no upload counts twice"
    assert not uploads.keys() & losses.keys()
    assert len(sent) == max(sent) + 1, "every job is in the record once"
    flying = sent.keys() - uploads.keys() - losses.keys()
    assert len(flying) <= 4, "nothing is lost without a word"
    by_device: dict[int, set[str]] = {}
    for job, reason in losses.items():
        by_device.setdefault(sent[job]["device"], set()).add(reason)
    assert by_device.pop(4, {"timeout"}) <= {"timeout"}, "it never answers"
    assert by_device.pop(5, {"rejected"}) <= {"rejected"}, "it sends NaN"
    assert by_device.pop(6, {"rejected"}) <= {"rejected"}, "it sends another layout"
    assert by_device.pop(0) <= {"left", "crash", "timeout"}, "it was killed"
    assert not by_device, "nothing else is lost"
    assert {sent[job]["device"] for job in uploads} == {0, 1, 2, 3, 7}, "the device that joined takes part"
    assert not uploads.keys() & {job for job in sent if sent[job]["device"] in odd}
    dead = bed.status()["devices"][0]
    assert not dead["online"]


def test_a_testbed_on_one_machine(tmp_path: Path) -> None:
    """The command as a user types it, twice: the second time the run is complete."""
    words = ["deploy", "local", *SETTINGS, "run.max_dispatches=9", "fleet.slots=2"]
    command = [sys.executable, "-m", "cabafl", *words, "--devices=3", "--time-scale=30", f"--out={tmp_path / 'bed'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in (tmp_path / "bed/run/events.jsonl").read_text().splitlines()]
    assert sum(event["event"] == "upload" for event in events) == 9
    seconds = [event["seconds"] for event in events if event["event"] == "answer"]
    assert min(seconds) > 0.3, "devices are slowed down to their tiers"
    keys = [*(tmp_path / "bed/fleet").rglob("*.key")]
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}
    again = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert "complete already" in again.stdout


@pytest.mark.parametrize(
    ("method", "settings"),
    [("cabafl", ["method.m=2", "method.k=2"]), ("fedasync", [])],
)
def test_the_simulator_follows_a_deployed_run(
    beds: Callable[[int, float], Bed], method: str, settings: list[str]
) -> None:
    """Device times, uploads and features of a run on real devices, given to the simulator: the same decisions."""
    bed = beds(5, 0.4)
    for number in range(5):
        bed.device(number)
    bed.serve(f"method.name={method}", *settings, "fleet.slots=2", "run.wall_time=30")
    events = bed.end(120)
    run = bed.path / "run"
    again = followed(run, events)
    assert sum(event["event"] == "publish" for event in events) > 3
    assert decisions(again) == decisions(events)
    if method == "cabafl":
        assert sum(event["event"] == "collection" and event["step"] == "end" for event in events) > 1


def decisions(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the method decided, without the clock; jobs that came in after the end of either run do not matter."""
    ordered = [event for event in events if event["event"] in ("dispatch", "publish")]
    return [{key: value for key, value in event.items() if key not in ("time", "due")} for event in ordered]


def followed(run: Path, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The simulator's events. Times lie on a grid of dyadic fractions, one per input, so that sums are exact."""
    experiment = load_experiment(run / "experiment.toml")
    inputs = list(Journal(run, keep=True).inputs())
    arrived = {given.job: given for given in inputs if isinstance(given, Arrived)}
    gathered = [given for given in inputs if isinstance(given, Gathered)]
    sizes = [given.samples for given in sorted((i for i in inputs if isinstance(i, Joined)), key=lambda i: i.device)]
    exact = {id(given): round(given.time * 1024) / 1024 + number / 2**20 for number, given in enumerate(inputs)}
    zero = exact[id(gathered[0])] if gathered else 0.0  # the first collection of a simulation takes no time
    times: dict[int, list[float]] = {device: [] for device in range(len(sizes))}
    waits: list[float] = []
    now, ends = 0.0, iter(gathered)
    for event in events:
        if event["event"] == "upload":
            now = exact[id(arrived[event["job"]])] - zero
        elif event["event"] == "collection" and event["step"] == "end":
            now = exact[id(next(ends))] - zero
        elif event["event"] == "collection":
            number = sum(e["event"] == "collection" for e in events[: events.index(event)]) // 2
            waits.append(exact[id(gathered[number])] - zero - now if number < len(gathered) else 1e6)
        elif event["event"] == "dispatch":
            end = exact[id(arrived[event["job"]])] - zero if event["job"] in arrived else 1e6
            times[event["device"]].append(end - now)
    devices = timetable(times, sizes)
    later = iter(waits[1:])
    object.__setattr__(devices, "collection_seconds", lambda: np.full(len(sizes), next(later)))
    made: list[Event] = []
    executor = Recorded({job: given.weights for job, given in arrived.items()}, [given.rows for given in gathered])
    parts = assemble_server(experiment, len(sizes))
    setup = engine_setup(parts, executor, made.append, max(exact.values()) - zero)
    setup = replace(setup, limits=replace(setup.limits, evaluate_every=1e6))
    engine = VirtualEngine(setup, devices)
    engine.run()
    return [json.loads(event.line()) for event in made]


class Recorded(ScriptedExecutor):
    """Uploads and features as they came from the devices."""

    def __init__(self, uploads: dict[int, Any], tables: list[Any]) -> None:
        super().__init__(lambda job: uploads[job.number], tables[0] if tables else None)
        self.tables = iter(tables)

    def result(self, ticket: int, interrupt: Interrupt | None = None) -> Any:
        if isinstance(self.jobs[ticket], FeatureJob):
            return next(self.tables)
        return super().result(ticket, interrupt)
