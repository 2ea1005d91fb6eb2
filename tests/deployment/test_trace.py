"""Experiments one after the other on a standing fleet of real processes; the simulator repeats their decisions."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("paho.mqtt", reason="needs paho-mqtt: pip install 'cabafl[deploy]'")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from cabafl.assembly import assemble_server, engine_setup
from cabafl.config import load_experiment
from cabafl.deployment.broker import find_mosquitto
from cabafl.engine.inputs import Arrived, Gathered, Joined
from cabafl.engine.journal import Journal
from cabafl.engine.virtual import VirtualEngine
from cabafl.execution.base import FeatureJob, Interrupt
from cabafl.recording.events import Event
from tests.deployment.bed import Bed, bed, check_that_every_job_ends_once
from tests.engine.test_wall import result
from tests.scripted import ScriptedExecutor, timetable

if find_mosquitto() is None:
    pytest.skip("needs Mosquitto 2 (Debian: apt-get install mosquitto)", allow_module_level=True)

pytestmark = pytest.mark.deploy

NEVER = 1e6  # seconds: after the end of the run
DEVICES = 4
UNDEFENDED = [f"run.defence.{key}=none" for key in ("update_clip", "feature_clip", "sample_quantile")]  # as simulated


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Devices that are started once."""
    with bed(tmp_path_factory.mktemp("fleet"), DEVICES, pace=0.4) as made:
        for number in range(DEVICES):
            made.device(number)
        yield made


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("cabafl", ["method.m=2", "method.k=2"]),
        ("fedasync", []),
        ("fedavg", []),
        ("scaffold", []),
        ("evenkeel", ["method.groups=2", "run.average=polynomial"]),  # grouped by features of real devices
    ],
)
def test_the_simulator_repeats_a_deployed_run(fleet: Bed, method: str, settings: list[str]) -> None:
    """With the device times, uploads and features of a run on real devices, the simulator takes the same decisions."""
    fleet.run = f"run-{method}"
    words = [f"method.name={method}", *settings, *UNDEFENDED, "fleet.slots=2"]
    fleet.serve(*words, "run.max_dispatches=40")  # however long that takes
    events = fleet.end()
    check_that_every_job_ends_once(events, 0)
    again = simulated(fleet.path / fleet.run, events)
    assert sum(event["event"] == "publish" for event in events) > 3
    assert decisions(again) == decisions(events)
    if method == "cabafl":
        assert sum(event["event"] == "collection" and event["step"] == "end" for event in events) > 1


def test_devices_stay_from_run_to_run(fleet: Bed) -> None:
    logs = [fleet.running[f"device-{number}"].output() for number in range(DEVICES)]
    runs = len(list(fleet.path.glob("run-*")))
    assert runs > 1, "the tests above have run"
    for log in logs:
        assert log.count(" connected") == 1
        assert log.count("joins a run") == runs
        assert "Traceback" not in log


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
        {job: result(given) for job, given in recording.arrived.items()}, [given.rows for given in recording.gathered]
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
