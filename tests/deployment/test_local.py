"""`cabafl deploy local` and what an operator does with it: real processes, the embedded data."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("paho.mqtt", reason="needs paho-mqtt: pip install 'cabafl[deploy]'")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from safetensors.numpy import load_file

from cabafl.deployment.broker import find_mosquitto
from tests.deployment.bed import PATIENCE, ROOT, SETTINGS, check_that_every_job_ends_once, read_events, uploaders

if find_mosquitto() is None:
    pytest.skip("needs Mosquitto 2 (Debian: apt-get install mosquitto)", allow_module_level=True)

pytestmark = pytest.mark.deploy

SLOTS = 2
DEVICES = 3
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"}


def words(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cabafl", *arguments]


def local(out: Path, *settings: str) -> list[str]:
    options = [f"--devices={DEVICES}", "--time-scale=60", f"--out={out}"]
    return words("deploy", "local", *SETTINGS, f"fleet.slots={SLOTS}", *settings, *options)


def call(*arguments: str, code: int = 0) -> str:
    """A command that ends by itself; returns what it prints."""
    done = subprocess.run(
        words(*arguments), env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextmanager
def started(command: list[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def wait(what: str, condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: {log.read_text()}"
        time.sleep(0.2)


def status(out: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((out / "fleet/state/status.json").read_text())
    except FileNotFoundError:
        found = {"uploads": 0}
    return found


def processes_of(out: Path) -> list[str]:
    """Command lines of processes that mention the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = entry.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(out) in text:
            found.append(text)
    return found


def test_an_operator_at_work(tmp_path: Path) -> None:
    """Looks at a run, takes its model, changes it, ends it; then reads the report."""
    out, log = tmp_path / "bed", tmp_path / "local.log"
    with started(local(out), log) as process:
        wait("uploads", lambda: status(out)["uploads"] > 4, log)
        shown = json.loads(call("deploy", "status", str(out), "--json"))
        assert shown["state"] == "running"
        assert [line["device"] for line in shown["devices"]] == [0, 1, 2]
        second = subprocess.run(local(out), env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 2
        assert "`cabafl deploy local` runs there" in second.stderr
        assert "3 devices online" in call("deploy", "status", str(out))
        assert "run.wall_time = 500.0" in call("deploy", "set", str(out), "run.wall_time=500", "run.slot_timeout=70")
        assert "method.k" in call("deploy", "set", str(out), "method.k=3", code=2)
        assert "version" in call("deploy", "export", str(out), "--out", str(tmp_path / "now.safetensors"))
        wait("the change", lambda: status(out)["wall_time"] == 500, log)
        printed = call("deploy", "stop", str(out))
        assert "stops after" in printed
        assert f"complete: {out / 'run'}" in printed
        assert process.wait(60) == 0, log.read_text()
    run = out / "run"
    check_that_every_job_ends_once(read_events(run), 0)
    changes = [event for event in read_events(run) if event["event"] == "change"]
    assert [(event["key"], event["value"]) for event in changes] == [("run.wall_time", 500), ("run.slot_timeout", 70)]
    check_folder(run, load_file(tmp_path / "now.safetensors"))
    assert {path.stat().st_mode & 0o777 for path in (out / "fleet").rglob("*.key")} == {0o600}
    assert "no server runs" in call("deploy", "stop", str(out), code=2)
    call("deploy", "export", str(out), "--out", str(tmp_path / "end.safetensors"))
    assert (tmp_path / "end.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    assert not processes_of(out)


def check_folder(run: Path, exported: dict[str, Any]) -> None:
    """The run folder is that of a finished run, and the report reads it."""
    summary = json.loads((run / "summary.json").read_text())
    assert summary["uploads"] == sum(uploaders(read_events(run)).values())
    assert (run / "curve.png").stat().st_size > 1000
    final = load_file(run / "model.safetensors")
    assert {name: value.shape for name, value in exported.items()} == {name: v.shape for name, v in final.items()}
    assert all(np.isfinite(value).all() for model in (exported, final) for value in model.values())
    call("report", str(run), "--out", str(run.parent / "report"))
    assert any((run.parent / "report").iterdir())


def test_ctrl_c_and_the_same_command_continues(tmp_path: Path) -> None:
    out, log = tmp_path / "bed", tmp_path / "local.log"
    command = local(out, "run.max_dispatches=24")
    with started(command, log) as process:
        wait("uploads", lambda: status(out)["uploads"] >= 6, log)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130, log.read_text()
    assert "continue with: the same command" in log.read_text()
    assert not processes_of(out)
    assert status(out)["state"] == "stopped"
    before = sum(uploaders(read_events(out / "run")).values())
    assert 6 <= before < 24
    exported = call("deploy", "export", str(out), "--out", str(tmp_path / "stopped.safetensors"))
    assert "from the last checkpoint" in exported

    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    events = read_events(out / "run")
    check_that_every_job_ends_once(events, 0)
    assert sum(event["event"] == "dispatch" for event in events) == 24
    seconds = [event["seconds"] for event in events if event["event"] == "answer"]
    assert min(seconds) > 0.1, "devices are slowed down to their tiers"
    again = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "already complete" in again.stdout
    assert not processes_of(out)


OWN_DATA = """
import numpy as np


def load(device):
    draw = np.random.default_rng(99 if device is None else device)
    y = draw.integers(0, 3, 40)
    return (draw.random((40, 5)) + y[:, None]).astype(np.float32), [("low", "fair", "high")[each] for each in y]
"""


def test_the_users_own_function_is_the_data_of_server_and_devices(tmp_path: Path) -> None:
    (tmp_path / "my_readings.py").write_text(OWN_DATA)
    settings = ["data.dataset=my_readings:load", "data.partition=natural", "model.name=mlp", "run.max_dispatches=8"]
    command = [sys.executable, "-P", "-m", "cabafl", "deploy", "local", *settings]
    done = subprocess.run(
        [*command, "--devices=3", "--time-scale=60", "--out=here"],
        env=ENVIRONMENT,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "my_readings:load: 40 test samples; the devices bring their own to train on" in done.stderr
    assert "joins samples=40" in done.stderr
    assert json.loads((tmp_path / "here" / "run" / "summary.json").read_text())["uploads"] == 8
