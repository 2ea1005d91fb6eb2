"""Whole runs with real processes and TLS: devices die, lie, never answer, join late; server and broker are killed."""

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("paho.mqtt", reason="needs paho-mqtt: pip install 'cabafl[deploy]'")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from safetensors.numpy import load_file

from cabafl.deployment.broker import find_mosquitto
from cabafl.deployment.log import MOST_COMPLAINTS
from tests.deployment.bed import (
    GONE_AFTER,
    Bed,
    bed,
    check_that_every_job_ends_once,
    losses,
    uploaders,
)

if find_mosquitto() is None:
    pytest.skip("needs Mosquitto 2 (Debian: apt-get install mosquitto)", allow_module_level=True)

pytestmark = pytest.mark.deploy

SLOTS = 4
HONEST = "honest"
ODD = {
    2: HONEST,
    3: "nan",
    4: "layout",
    5: "silent",
    6: "malformed",
    7: "version",
    8: "replay",
    9: "another",
    10: "empty",
    11: "huge",
    12: "flood",
}
RANDOM = ["method.name=fedasync", f"fleet.slots={SLOTS}"]  # every device gets a job soon


@pytest.fixture
def fleet(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bed]:
    with bed(tmp_path, **request.param) as made:
        yield made


def check_result(made: Bed, events: list[dict[str, Any]]) -> None:
    """A complete run with a usable model, in which every job counts once."""
    check_that_every_job_ends_once(events, SLOTS)
    run = made.path / made.run
    assert all(np.isfinite(tensor).all() for tensor in load_file(run / "model.safetensors").values())
    summary = json.loads((run / "summary.json").read_text())
    assert summary["clock"] == "wall"
    assert summary["uploads"] == sum(uploaders(events).values())


@pytest.mark.parametrize("fleet", [{"devices": 13}], indirect=True)
def test_devices_that_behave_oddly(fleet: Bed) -> None:
    fleet.odd(ODD)
    for number in (0, 1):
        fleet.device(number)
    fleet.serve(*RANDOM, "run.slot_timeout=6", "deploy.start_devices=12")
    fleet.wait("the start", lambda status: status["state"] == "running")
    least = {number: 5 for number in range(13) if number not in (5, 7, 10)} | {3: 3, 4: 3, 12: 1}  # the last three rest
    fleet.wait("jobs", lambda status: all(status["devices"][number]["jobs"] >= jobs for number, jobs in least.items()))
    fleet.wait("the end of a silence", lambda status: status["losses"].get("timeout", 0) > 0)
    lines = fleet.status()["devices"]
    events = fleet.stop()
    check_result(fleet, events)

    lost = losses(events)
    assert set(lost.pop(3)) == {"rejected"}, "it sends NaN"
    assert set(lost.pop(4)) == {"rejected"}, "it sends another layout"
    assert lost.pop(5) == {"timeout": 1}, "it never answers, so that it gets one job only"
    assert set(lost.pop(12, {})) <= {"crash"}, "another process does not have the job"
    assert not lost, "no other device loses a job"
    assert {event["device"] for event in events if event["event"] == "rest"} >= {3, 4}, "they keep failing"
    assert uploaders(events).keys() >= {0, 1, 2, 6, 8, 9, 11}
    assert not uploaders(events).keys() & {3, 4, 5, 7, 10}

    assert {number for number in range(13) if lines[number]["faults"]} >= {3, 4, 6, 9, 12}
    assert not any(lines[number]["faults"] for number in (0, 1, 2, 8, 10, 11)), "what arrives twice is no fault"
    assert lines[7]["declined"] == "protocol version 3; accepted: 2 (upgrade the older side)"
    assert lines[10]["online"]
    assert lines[10]["samples"] == 0
    log = fleet.running["server"].output()
    most = MOST_COMPLAINTS + 10  # it joins, too
    assert all(log.count(f"device {number}:") < most for number in range(13)), "no device fills the log"
    assert "device 12: joins more than 6 times a minute" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("fleet", [{"devices": 5, "pace": 2.0}], indirect=True)
def test_devices_that_go_and_come_back(fleet: Bed) -> None:
    for number in range(4):
        fleet.device(number)
    fleet.serve(*RANDOM, "deploy.start_devices=4")
    fleet.wait("the start", lambda status: status["uploads"] >= 2)
    fleet.device(4)  # joins late
    for number in (0, 1, 2):
        fleet.wait("a job", lambda status, number=number: status["devices"][number]["job"] is not None)  # type: ignore[misc]
        if number == 2:
            fleet.signal("device-2", signal.SIGSTOP)
            continue
        fleet.kill(f"device-{number}")
    stopped = time.monotonic()
    before = fleet.status()["devices"]
    fleet.device(0)  # back before anybody has noticed
    for number in (1, 2):
        fleet.wait("a loss", lambda status, number=number: not status["devices"][number]["online"])  # type: ignore[misc]
    assert time.monotonic() - stopped < GONE_AFTER + 20
    fleet.device(1)
    fleet.signal("device-2", signal.SIGCONT)
    for number in range(5):
        jobs = before[number]["jobs"]
        fleet.wait("more jobs", lambda status, n=number, jobs=jobs: status["devices"][n]["jobs"] > jobs + 1)  # type: ignore[misc]
    assert all(line["online"] for line in fleet.status()["devices"])
    events = fleet.stop()
    check_result(fleet, events)
    lost = losses(events)
    assert lost.pop(0) == {"crash": 1}, "its new process does not have the job"
    assert lost.pop(1) == {"left": 1}
    assert lost.pop(2) == {"left": 1}
    assert not lost
    assert uploaders(events).keys() == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("fleet", [{"devices": 8}], indirect=True)
def test_server_and_broker_are_killed(fleet: Bed) -> None:
    fleet.odd(dict.fromkeys(range(8), HONEST))
    settings = [f"fleet.slots={SLOTS}", "method.k=2", "method.m=2"]
    fleet.serve(*settings)
    fleet.wait_for_uploads(10, "the start")
    fleet.signal("broker", signal.SIGUSR1)  # saves its database, which is old when it is needed
    for _ in range(2):
        fleet.kill("server")
        time.sleep(2.0)  # answers wait in the broker
        fleet.serve(*settings)
        fleet.wait_for_uploads(10, "the server is back")
    for forgetful in (False, True):
        fleet.kill("broker")
        if forgetful:
            shutil.rmtree(fleet.fleet.state / "broker")
        time.sleep(1.0)
        fleet.broker()
        fleet.wait_for_uploads(10, "the broker is back")
    events = fleet.stop()
    check_result(fleet, events)
    assert uploaders(events).keys() == set(range(8))
    assert not losses(events), "devices keep their answers until they are counted"
    log = fleet.running["server"].output()
    assert [line.rpartition("=")[2] for line in log.splitlines() if "connected to" in line] == ["True", "True", "False"]
    assert "Traceback" not in log
