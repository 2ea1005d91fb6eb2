"""Memory and priority of a real device process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cabafl.assembly import make_server_task
from cabafl.config import load_experiment
from cabafl.deployment.device.machine import apply_limits, memory_failures
from cabafl.deployment.device.terms import Resources
from cabafl.deployment.greeting import Greeting
from cabafl.errors import UserError

pytestmark = pytest.mark.slow
LOADER = """
import numpy as np

def load():
    return np.zeros((3000, 1, 28, 28), dtype=np.uint8), np.arange(3000) % 10

def load_too_much():
    return np.ones((300_000, 1, 28, 28), dtype=np.float32), np.arange(300_000) % 10
"""
DEVICE = """
import json, os, sys, threading
from pathlib import Path

import numpy as np

from cabafl.deployment.device.machine import _used_memory
from cabafl.deployment.device.participant import Participant
from cabafl.deployment.device.terms import Resources
from cabafl.deployment.folder.layout import Device
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.messages import TrainingJob
from cabafl.methods.base import PLAIN

threading.Thread(target=threading.Event().wait, daemon=True).start()  # a thread that exists before
loader, extra, *greetings = sys.argv[1:]
limits = Resources(memory_mb=_used_memory() + int(extra), nice=15)
device = Participant(Device(Path.cwd(), "", 0, 0, data=f"readings:{loader}", limits=limits))
found = {"nice": sorted({os.getpriority(os.PRIO_PROCESS, int(t.name)) for t in Path("/proc/self/task").iterdir()})}
found["jobs"] = []
for text in greetings:
    try:
        greeting = Greeting.read(text)
        device.join(greeting)
        reply = device.train(TrainingJob(1, np.full(greeting.weights, 0.01, dtype=np.float32), PLAIN), lambda: False)
        found["jobs"].append(reply is not None)
    except Exception as error:
        found["jobs"].append(f"{type(error).__name__}: {error}")
print(json.dumps(found))
"""


def greeting_text(*settings: str) -> str:
    experiment = load_experiment(
        None, ["data.train_limit=100", "data.devices=1", "model.name=cnn", "training.epochs=1", *settings]
    )
    return Greeting.of(experiment, make_server_task(experiment), 1).text()


def run_device(folder: Path, loader: str, extra: int, *greetings: str) -> dict[str, Any]:
    (folder / "readings.py").write_text(LOADER)
    command = [sys.executable, "-c", DEVICE, loader, str(extra), *greetings]
    paths = os.pathsep.join([str(folder), *sys.path])
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA")
def test_a_job_that_needs_too_much_memory_fails_and_the_device_goes_on(tmp_path: Path) -> None:
    small, large = greeting_text("training.batch_size=50"), greeting_text("training.batch_size=3000")
    found = run_device(tmp_path, "load", 250, small, large, small)
    first, second, third = found["jobs"]
    assert first is True
    assert second.startswith("MemoryError: out of memory (limits.memory_mb = ")
    assert third is True
    assert found["nice"] == [max(15, os.getpriority(os.PRIO_PROCESS, 0))], "all threads"


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA")
def test_samples_that_do_not_fit_keep_the_device_out(tmp_path: Path) -> None:
    [found] = run_device(tmp_path, "load_too_much", 250, greeting_text())["jobs"]
    assert found.startswith("UserError: model = 'cnn': out of memory (limits.memory_mb = ")


def test_a_limit_below_what_the_process_already_uses_is_refused() -> None:
    with pytest.raises(UserError, match=r"limits.memory_mb = 1: too little, the process uses [0-9]+ before it has"):
        apply_limits(Resources(memory_mb=1))


def test_every_way_to_run_out_of_memory_has_one_name() -> None:
    limits = Resources(memory_mb=9)
    for error in (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("std::bad_alloc"),
        MemoryError("Unable to allocate 3 GiB"),
    ):
        with pytest.raises(MemoryError, match=r"out of memory \(limits.memory_mb = 9\)"), memory_failures(limits):
            raise error
    with pytest.raises(RuntimeError, match="shapes"), memory_failures(Resources()):
        raise RuntimeError("shapes do not match")
