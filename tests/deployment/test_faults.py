"""Whole runs with real processes, TLS and keys: devices die, lie, never answer and join late; server and SuperLink are
killed; and the simulator repeats the decisions of a finished run."""

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

from cabafl.deployment.testbed.programs import environment, start_proxy, start_superlink
from safetensors.numpy import load_file

from cabafl.assembly import assemble_server, engine_setup
from cabafl.config import load_experiment
from cabafl.deployment.folder.layout import DEVICE, FleetFolder, FleetSettings
from cabafl.deployment.folder.provision import make_fleet
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
NEVER = 1e6  # seconds: after the end of the run
SLOTS = 4
ODD_DEVICES = {4: "silent", 5: "nan", 6: "layout"}
FAULT_SETTINGS = [
    f"fleet.slots={SLOTS}",
    "run.slot_timeout=60",
    "run.wall_time=130",
    "method.k=2",
    "deploy.start_devices=7",
]
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
    """A fleet on loopback; all processes end with the test."""

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
        """Waits for the server to finish; returns the events of its run."""
        server = self.running["server"]
        assert server.process.wait(seconds) == 0, server.output()
        return read_events(self.path / "run")


def read_events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


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


MakeBed = Callable[[int, float], Bed]  # number of devices, seconds per job


@pytest.fixture
def beds(tmp_path: Path) -> Iterator[MakeBed]:
    made: list[Bed] = []

    def make(devices: int, pace: float) -> Bed:
        made.append(bed_of(tmp_path, devices, pace))
        return made[-1]

    yield make
    for bed in made:
        bed.children.stop()


def test_everything_that_can_go_wrong(beds: MakeBed) -> None:
    bed = beds(8, 1.0)
    for number in range(4):
        bed.device(number)
    for number, how in ODD_DEVICES.items():
        bed.device(number, how)
    bed.serve(*FAULT_SETTINGS)
    bed.wait("the start", lambda: bed.status()["uploads"] >= 3, 90)
    bed.device(7)  # joins during the run
    bed.wait("training on device 0", lambda: bed.status()["devices"][0]["job"] is not None)
    bed.kill("device-0")
    time.sleep(3)
    restart_server(bed)
    restart_superlink(bed)
    events = bed.end(240)

    assert all(np.isfinite(tensor).all() for tensor in load_file(bed.path / "run" / "model.safetensors").values())
    assert json.loads((bed.path / "run" / "summary.json").read_text())["clock"] == "wall"
    assert not bed.status()["devices"][0]["online"], "it was killed"
    check_that_every_job_counts_once(events)
    check_losses_and_uploads_by_device(events)


def restart_server(bed: Bed) -> None:
    """Kills the server, starts it again, and waits for new uploads."""
    bed.kill("server")
    before = bed.status()["uploads"]
    time.sleep(2)
    bed.serve(*FAULT_SETTINGS)
    bed.wait("uploads after the server came back", lambda: bed.status()["uploads"] > before + 2)


def restart_superlink(bed: Bed) -> None:
    """Kills the SuperLink, starts it again, and waits for new uploads."""
    bed.kill("superlink")
    time.sleep(1)
    bed.running["superlink"] = start_superlink(bed.children, bed.fleet)
    before = bed.status()["uploads"]
    bed.wait("uploads after the SuperLink came back", lambda: bed.status()["uploads"] > before + 2)


def check_that_every_job_counts_once(events: list[dict[str, Any]]) -> None:
    sent = {event["job"] for event in events if event["event"] == "dispatch"}
    uploads = Counter(event["job"] for event in events if event["event"] == "upload")
    losses = {event["job"] for event in events if event["event"] == "loss"}
    assert set(uploads.values()) == {1}, "no upload counts twice"
    assert not uploads.keys() & losses
    assert sent == set(range(len(sent))), "every job is in the record once"
    assert len(sent - uploads.keys() - losses) <= SLOTS, "no job vanishes: the rest is under way at the end"


def check_losses_and_uploads_by_device(events: list[dict[str, Any]]) -> None:
    device_of = {event["job"]: event["device"] for event in events if event["event"] == "dispatch"}
    lost: dict[int, set[str]] = {}
    for event in events:
        if event["event"] == "loss":
            lost.setdefault(device_of[event["job"]], set()).add(event["reason"])
    assert lost.pop(4, {"timeout"}) <= {"timeout"}, "it never answers"
    assert lost.pop(5, {"rejected"}) <= {"rejected"}, "it sends NaN"
    assert lost.pop(6, {"rejected"}) <= {"rejected"}, "it sends another layout"
    assert lost.pop(0) <= {"left", "crash", "timeout"}, "it was killed"
    assert not lost, "no other device loses a job"
    uploaded = {device_of[event["job"]] for event in events if event["event"] == "upload"}
    assert uploaded == {0, 1, 2, 3, 7}, "the device that joined late takes part; odd devices never upload"


def test_a_testbed_on_one_machine(tmp_path: Path) -> None:
    """Runs the command twice: the second time the run is already complete."""
    words = ["deploy", "local", *SETTINGS, "run.max_dispatches=9", "fleet.slots=2"]
    command = [sys.executable, "-m", "cabafl", *words, "--devices=3", "--time-scale=30", f"--out={tmp_path / 'bed'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    events = read_events(tmp_path / "bed/run")
    assert sum(event["event"] == "upload" for event in events) == 9
    seconds = [event["seconds"] for event in events if event["event"] == "answer"]
    assert min(seconds) > 0.3, "devices are slowed down to their tiers"
    keys = [*(tmp_path / "bed/fleet").rglob("*.key")]
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}
    again = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert "already complete" in again.stdout


@pytest.mark.parametrize(
    ("method", "settings"),
    [("cabafl", ["method.m=2", "method.k=2"]), ("fedasync", [])],
)
def test_the_simulator_repeats_a_deployed_run(beds: MakeBed, method: str, settings: list[str]) -> None:
    """With the device times, uploads and features of a run on real devices, the simulator takes the same decisions."""
    bed = beds(5, 0.4)
    for number in range(5):
        bed.device(number)
    bed.serve(f"method.name={method}", *settings, "fleet.slots=2", "run.max_dispatches=60")  # however long that takes
    events = bed.end(300)
    again = simulated(bed.path / "run", events)
    assert sum(event["event"] == "publish" for event in events) > 3
    assert decisions(again) == decisions(events)
    if method == "cabafl":
        assert sum(event["event"] == "collection" and event["step"] == "end" for event in events) > 1


def decisions(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the method decided, without the clock."""
    ordered = [event for event in events if event["event"] in ("dispatch", "publish")]
    return [{key: value for key, value in event.items() if key not in ("time", "due")} for event in ordered]


class Recording:
    """The journal of a deployed run. Times are dyadic fractions, different for each input, so that their sums are exact
    in the simulator; 0 is the end of the first feature collection, which takes no time in a simulation."""

    def __init__(self, run: Path) -> None:
        journal = Journal(run, keep=True)
        inputs = [given for _, given in journal.inputs()]
        journal.close()
        joined = sorted((given for given in inputs if isinstance(given, Joined)), key=lambda given: given.device)
        self.sizes = [given.samples for given in joined]
        self.arrived = {given.job: given for given in inputs if isinstance(given, Arrived)}
        self.gathered = [given for given in inputs if isinstance(given, Gathered)]
        self._times = {id(given): round(given.time * 1024) / 1024 + i / 2**20 for i, given in enumerate(inputs)}
        self._zero = self._times[id(self.gathered[0])] if self.gathered else 0.0
        self.seconds = max(self._times.values()) - self._zero

    def time(self, given: Arrived | Gathered) -> float:
        return self._times[id(given)] - self._zero

    def durations(self, events: list[dict[str, Any]]) -> tuple[dict[int, list[float]], list[float]]:
        """Seconds of each device's jobs, in order, and of the feature collections; `NEVER` if one did not end."""
        jobs: dict[int, list[float]] = {device: [] for device in range(len(self.sizes))}
        collections: list[float] = []
        now = 0.0
        for event in events:
            if event["event"] == "upload":
                now = self.time(self.arrived[event["job"]])
            elif event["event"] == "dispatch":
                given = self.arrived.get(event["job"])
                jobs[event["device"]].append(NEVER if given is None else self.time(given) - now)
            elif event["event"] == "collection" and event["step"] == "end":
                now = self.time(self.gathered[len(collections) - 1])
            elif event["event"] == "collection":
                number = len(collections)
                ends = number < len(self.gathered)
                collections.append(self.time(self.gathered[number]) - now if ends else NEVER)
        return jobs, collections


def simulated(run: Path, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The simulator's events with the recorded times, uploads and features."""
    recording = Recording(run)
    jobs, collections = recording.durations(events)
    devices = timetable(jobs, recording.sizes)
    later = iter(collections[1:])
    object.__setattr__(devices, "collection_seconds", lambda: np.full(len(recording.sizes), next(later)))
    made: list[Event] = []
    executor = Recorded(
        {job: given.weights for job, given in recording.arrived.items()}, [given.rows for given in recording.gathered]
    )
    parts = assemble_server(load_experiment(run / "experiment.toml"), len(recording.sizes))
    setup = engine_setup(parts, executor, made.append, recording.seconds)
    setup = replace(setup, limits=replace(setup.limits, evaluate_every=NEVER))
    VirtualEngine(setup, devices).run()
    return [json.loads(event.line()) for event in made]


class Recorded(ScriptedExecutor):
    """Returns the recorded uploads and features instead of computing them."""

    def __init__(self, uploads: dict[int, Any], tables: list[Any]) -> None:
        super().__init__(lambda job: uploads[job.number], tables[0] if tables else None)
        self.tables = iter(tables)

    def result(self, ticket: int, interrupt: Interrupt | None = None) -> Any:
        if isinstance(self.jobs[ticket], FeatureJob):
            return next(self.tables)
        return super().result(ticket, interrupt)
