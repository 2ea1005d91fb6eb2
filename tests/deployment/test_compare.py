"""`cabafl deploy compare` with real processes: a standing fleet, two methods, a kill in between, one report."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("paho.mqtt", reason="needs paho-mqtt: pip install 'cabafl[deploy]'")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from cabafl.deployment.broker import find_mosquitto
from tests.deployment.bed import PATIENCE, SETTINGS, bed, check_that_every_job_ends_once, read_events, uploaders
from tests.deployment.test_local import ENVIRONMENT, call, processes_of, started, status, wait, words

if find_mosquitto() is None:
    pytest.skip("needs Mosquitto 2 (Debian: apt-get install mosquitto)", allow_module_level=True)

pytestmark = pytest.mark.deploy

DEVICES, JOBS = 3, 16


def compare(out: Path) -> list[str]:
    settings = [*SETTINGS, "fleet.slots=2", f"run.max_dispatches={JOBS}", "run.evaluate_every=1"]
    options = ["--methods=fedasync,fedavg", f"--devices={DEVICES}", "--time-scale=20", f"--out={out}"]
    return words("deploy", "compare", *settings, *options)


def test_a_killed_comparison_continues_on_the_same_fleet(tmp_path: Path) -> None:
    out, log = tmp_path / "bed", tmp_path / "compare.log"
    first, second = (out / "runs" / f"{method}-seed1" for method in ("fedasync", "fedavg"))
    with started(compare(out), log) as process:
        wait("the first method", lambda: status(out).get("method") == "fedasync", log)
        again = subprocess.run(compare(out), env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
        assert again.returncode == 2
        assert "another comparison is writing here" in again.stderr
        assert "devices online" in call("deploy", "status", str(out))
        wait("the second method", lambda: status(out).get("method") == "fedavg" and status(out)["uploads"] >= 3, log)
        process.send_signal(signal.SIGKILL)
        process.wait()
    for number in range(DEVICES):
        lines = (out / f"logs/device-{number}.log").read_text()
        assert lines.count(" connected") == 1, "it has stayed up"
        assert lines.count("joins a run") == 2
    assert not (second / "summary.json").exists()
    assert not (out / "report.html").exists()
    stamp = (first / "summary.json").stat().st_mtime_ns
    before = list(uploaders(read_events(second)).elements())

    done = subprocess.run(compare(out), env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 2 runs are already finished." in done.stdout
    assert (first / "summary.json").stat().st_mtime_ns == stamp
    for run in (first, second):
        events = read_events(run)
        check_that_every_job_ends_once(events, 0)
        assert sum(event["event"] == "dispatch" for event in events) == JOBS
        assert json.loads((run / "summary.json").read_text())["joules"] > 0
    assert 3 <= len(before) < JOBS
    check_report(out)
    assert not processes_of(out)
    third = subprocess.run(compare(out), env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    assert "2 of 2 runs are already finished." in third.stdout, "the report again, without a fleet"
    assert third.returncode == 0


def check_report(out: Path) -> None:
    page = (out / "report.html").read_text()
    assert "fedasync" in page
    assert "fedavg" in page
    names = {path.name for path in (out / "figures").iterdir()}
    assert names >= {"accuracy-time.png", "accuracy-transfers.png", "accuracy-joules.png", "timeline.png"}


def test_a_comparison_on_a_fleet_that_is_there(tmp_path: Path) -> None:
    """Devices are not the command's own: they stay when it ends."""
    out = tmp_path / "out"
    settings = [*SETTINGS, "fleet.slots=1", "run.max_dispatches=6", "run.evaluate_every=1"]
    with bed(tmp_path / "bed", 2) as made:
        devices = [made.device(number) for number in range(2)]
        options = ["--methods=fedasync,fedavg", f"--fleet={made.fleet.path}", f"--out={out}"]
        printed = call("deploy", "compare", *settings, *options)
        assert "run 2 of 2: fedavg, seed 1" in printed
        for device in devices:
            assert device.process.poll() is None
            assert device.output().count("joins a run") == 2
    check_report(out)
    assert not (out / "fleet").exists()
    for method in ("fedasync", "fedavg"):
        check_that_every_job_ends_once(read_events(out / "runs" / f"{method}-seed1"), 0)
