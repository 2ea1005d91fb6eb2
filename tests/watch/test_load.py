"""Many runs, one of a million events, and a fleet of 100,000 devices: time and memory of the server."""

import json
import os
import shutil
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from cabafl.processes.children import free_ports
from cabafl.watch.fleet_views import FleetView
from cabafl.watch.locks import Locks
from cabafl.watch.moment import FIELDS
from cabafl.watch.places import Place
from cabafl.watch.watched import WatchedRun
from tests.watch.long_run import write_events
from tests.watch.site import unpacked
from tests.watch.test_serving import PATIENCE, server

MOST_MEMORY = 300  # MB
SAMPLE = 50_000  # lines


def peak_memory(pid: int) -> float:
    """In MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def processor_seconds(pid: int) -> float:
    """What the process has used so far; unlike the time on the clock it does not depend on what else runs here."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def decoding_seconds(events: Path) -> float:
    """What this machine takes to decode every line of a file of a million with Python's own module."""
    with events.open() as lines:
        sample = [next(lines) for _ in range(SAMPLE)]
    began = time.process_time()
    for line in sample:
        json.loads(line)
    return (time.process_time() - began) * 1_000_000 / SAMPLE


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_fifty_runs_one_of_a_million_events(finished: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for number in range(50):
        shutil.copytree(finished, runs / f"run-{number}")
    write_events(runs / "run-7" / "events.jsonl", 1_000_000)
    [port] = free_ports(1)
    with (
        server("--port", str(port), cwd=runs) as (url, _, process),
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        found = {run["name"]: run["id"] for run in client.get("/api/runs").json()["runs"]}
        assert len(found) == 50
        before, began = processor_seconds(process.pid), time.monotonic()
        address = f"/api/runs/{found['run-7']}"
        while (page := client.get(address).json())["indexed"] < 1:
            time.sleep(0.02)
        for what in ("curves", "activity"):  # what its first view shows
            assert client.get(f"{address}/{what}").status_code == 200
        first = time.monotonic() - began
        for what in (
            "method",
            "timeline",
            "fleet",
            "at?time=1000",
            "series?kind=cache&field=rank",
        ):
            assert client.get(f"{address}/{what}").status_code == 200
        opening, wall = processor_seconds(process.pid) - before, time.monotonic() - began
        assert page["events"] >= 1_000_000
        assert opening < 2 * decoding_seconds(runs / "run-7" / "events.jsonl"), opening  # measured: about as long
        for run in found.values():  # somebody looks at each of them
            client.get(f"/api/runs/{run}")
        time.sleep(1.5)
        assert peak_memory(process.pid) < MOST_MEMORY
        memory = peak_memory(process.pid)
        print(f"opening: {first:.2f} s; with all views {wall:.2f} s, {opening:.2f} of the processor; {memory:.0f} MB")  # noqa: T201


def test_a_fleet_of_100_000_devices(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    settings = (folder / "experiment.toml").read_text()
    settings = settings.replace("devices = 12", "devices = 100000").replace("present_seconds = 60.0", "")
    (folder / "experiment.toml").write_text(
        settings.replace("absent_seconds = 10.0", "").replace("# tiers =", 'tiers = "config1"')
    )
    write_events(folder / "events.jsonl", 100_000, devices=100_000)
    run = WatchedRun(Place(tmp_path, ("run",)))
    run.follow(Locks())
    while run.read_events():
        pass
    FleetView(run, None, None).packed(FIELDS)  # the tiers are worked out once
    began = time.process_time()
    content = FleetView(run, None, None).packed(FIELDS)
    seconds = time.process_time() - began
    header, arrays = unpacked(content)
    assert header["devices"] == 100_000
    assert np.bincount(arrays["tier"]).tolist() == [40_000, 30_000, 10_000, 10_000, 10_000]
    assert len(content) < 4_000_000
    assert len(FleetView(run, None, None).packed(["state"])) < 110_000
    assert seconds < 0.5, seconds
