"""The page of a real fleet on this machine, and what an operator does there."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("paho.mqtt", reason="needs paho-mqtt: pip install 'cabafl[deploy]'")

from safetensors.numpy import load

from cabafl.deployment.broker import find_mosquitto
from tests.cli.program import CABAFL
from tests.watch.test_serving import PATIENCE, _address

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto 2 (Debian: apt-get install mosquitto)"),
]
WORDS = [
    *("data.train_limit=300", "data.test_limit=100", "model.name=mlp", "training.epochs=1", "run.evaluate_every=5"),
    *("run.wall_time=900", "--devices", "3", "--time-scale", "20", "--out", "bed", "--watch"),
]


def eventually(what: Callable[[], Any]) -> Any:
    """What is true in the end."""
    deadline = time.monotonic() + 2 * PATIENCE
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return found


def test_an_operator_takes_the_model_removes_a_device_and_stops_the_run(tmp_path: Path) -> None:
    command = [*CABAFL, "deploy", "local", *WORDS]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        url = _address(process.stderr)
        token = process.stderr.readline().split()[-1].decode()
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            [fleet] = eventually(lambda: [each for each in client.get("/api/runs").json()["fleets"] if each["run"]])
            address = f"/api/fleets/{fleet['id']}"
            eventually(lambda: (client.get(address).json()["uploads"] or 0) > 3)
            run = client.get(f"/api/runs/{fleet['run']}").json()
            assert (run["state"], run["clock"], run["fleet"]) == ("running", "wall", fleet["id"])
            assert client.post(f"{address}/stop", json={"confirm": True}).status_code == 401
            csrf = client.post("/api/login", json={"secret": token}).json()["csrf"]

            def act(what: str) -> httpx.Response:
                headers = {"X-CSRF-Token": csrf}
                response = client.post(f"{address}/{what}", json={"confirm": True}, headers=headers)
                assert response.status_code == 200, response.text
                return response

            assert load(act("model").content)
            act("devices/2/remove")
            act("stop")
        process.stderr.close()
        assert process.wait(2 * PATIENCE) == 0
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
    lines = [json.loads(line) for line in (tmp_path / "bed/run/events.jsonl").read_text().splitlines()]
    done = [(line["event"], line.get("action")) for line in lines if line["event"] in ("operator", "stop")]
    assert done == [("operator", "export"), ("operator", "remove"), ("stop", None)]
    assert json.loads((tmp_path / "bed/run/summary.json").read_text())["stopped"] == "soon"
    assert not (tmp_path / "bed/fleet/devices/002").exists()
