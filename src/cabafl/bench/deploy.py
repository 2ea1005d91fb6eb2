"""Overhead of a dispatch to a real device: MQTT as deployed beside Flower as it comes; load on broker and server."""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from cabafl.assembly import make_server_task
from cabafl.bench import deploy_flower
from cabafl.bench.deploy_flower import DEVICES, SECONDS
from cabafl.bench.fleet_processes import (
    make_local_fleet,
    memory_bytes,
    processor_seconds,
    start_light,
)
from cabafl.bench.report import BenchSection, BenchTable, Check
from cabafl.bench.timing import Spread
from cabafl.config import load_experiment
from cabafl.deployment.broker import start_broker
from cabafl.deployment.folder.layout import FleetFolder
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.log import Log
from cabafl.deployment.messages import Here, Trained
from cabafl.deployment.mqtt.carrier import MqttCarrier
from cabafl.deployment.mqtt.fleet import server_account
from cabafl.deployment.server.carrier import RunOnFleet
from cabafl.methods.base import Job, Weights
from cabafl.processes.children import Child, Children, free_ports

SIZES = (250_000, 1_000_000, 45_000_000)  # bytes of a model
GOAL = 0.1  # seconds beyond training for 1 MB
TIME_LIMIT = 600.0  # seconds for Flower's run
FLOWER, MQTT = "Flower as it comes", "cabafl as deployed (MQTT)"
IN_FLIGHT, BUSY_DEVICES = 20, 100
IDLE_DEVICES, IDLE_SECONDS = 1000, 60.0

_APP = """
[project]
name = "cabafl-bench"
version = "1.0.0"
[tool.flwr.app]
publisher = "cabafl"
[tool.flwr.app.components]
serverapp = "overhead.app:server"
clientapp = "overhead.app:client"
[tool.flwr.app.config]
out = {out}
sizes = {sizes}
times = {times}
"""


class Exchange:
    """A run without a method: sends models to light devices and gets them back."""

    def __init__(self, fleet: FleetFolder, weights: int) -> None:
        experiment = load_experiment(None, ["data.dataset=synthetic", "model.name=mlp"])
        greeting = Greeting.of(experiment, make_server_task(experiment), len(fleet.device_ids()))
        text = greeting.model_copy(update={"weights": weights}).text()
        run = RunOnFleet(f"bench-{weights}", text, weights, lambda kind: 1, 300.0)
        self.carrier = MqttCarrier(server_account(fleet), run, Log(file=sys.stderr))
        self.random = np.random.default_rng(1)
        self.jobs = 0
        self.here: set[int] = set()
        self.weights = weights

    def wait_for(self, devices: int, seconds: float = 120.0) -> None:
        """Returns when this many devices have joined."""
        deadline = time.monotonic() + seconds
        while len(self.here) < devices:
            self.answers()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(self.here)} of {devices} devices have joined after {seconds:g} s")

    def send(self, device: int) -> Weights:
        """Sends a new random model to a device."""
        weights = self.random.standard_normal(self.weights, dtype=np.float32)
        self.carrier.send([Job(self.jobs, device, 0, 0, weights)])
        self.jobs += 1
        return weights

    def answers(self, timeout: float = 1.0) -> list[Trained]:
        """The trained models that have arrived."""
        deliveries = self.carrier.receive(timeout)
        self.carrier.confirm(deliveries)
        self.here |= {d.news.device for d in deliveries if isinstance(d.news, Here)}
        return [d.news for d in deliveries if isinstance(d.news, Trained)]


def ours(sizes: Sequence[int], times: int) -> dict[str, list[float]]:
    """Seconds per dispatch beyond training, by model size: TLS, certificates, access list, all as deployed."""
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        fleet = make_local_fleet(Path(scratch) / "fleet", DEVICES)
        with Children(Path(scratch) / "logs") as children:
            start_broker(children, fleet)
            start_light(children, fleet, range(DEVICES), SECONDS)
            for size in sizes:
                exchange = Exchange(fleet, size // 4)
                exchange.wait_for(DEVICES)
                taken[str(size)] = [_one(exchange, turn % DEVICES) for turn in range(times + 1)][1:]
                exchange.carrier.close(finished=True)
    return taken


def _one(exchange: Exchange, device: int) -> float:
    started = time.perf_counter()
    weights = exchange.send(device)
    while not (found := exchange.answers()):
        pass
    taken = time.perf_counter() - started
    change = found[0].reply.weights - weights
    assert np.abs(change - change[0]).max() < 1e-5, "the answer must belong to this job"
    return taken - found[0].reply.seconds


def throughput(times: int) -> dict[str, float]:
    """Dispatches per second of 0.25 MB with 20 in flight, and the processor time each costs."""
    with tempfile.TemporaryDirectory() as scratch:
        fleet = make_local_fleet(Path(scratch) / "fleet", BUSY_DEVICES)
        with Children(Path(scratch) / "logs") as children:
            broker = start_broker(children, fleet)
            start_light(children, fleet, range(BUSY_DEVICES), seconds=0.0)
            exchange = Exchange(fleet, SIZES[0] // 4)
            exchange.wait_for(BUSY_DEVICES)
            before, own, started = processor_seconds(broker.process.pid), time.process_time(), time.perf_counter()
            for device in range(IN_FLIGHT):
                exchange.send(device)
            done = 0
            while done < times:
                for answer in exchange.answers():
                    done += 1
                    exchange.send((answer.device + IN_FLIGHT) % BUSY_DEVICES)
            seconds = time.perf_counter() - started
            figures = {
                "dispatches per second": done / seconds,
                "broker: processor ms per dispatch": 1e3 * (processor_seconds(broker.process.pid) - before) / done,
                "server: processor ms per dispatch": 1e3 * (time.process_time() - own) / done,
            }
            exchange.carrier.close(finished=True)
            return figures


def idle(devices: int, seconds: float) -> dict[str, float]:
    """Load of connected devices without work on broker and server."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fleet = make_local_fleet(scratch / "fleet", devices)
        children = stack.enter_context(Children(scratch / "logs"))
        broker = start_broker(children, fleet)
        start_light(children, fleet, range(devices))
        exchange = Exchange(fleet, 1000)
        joining = time.perf_counter()
        exchange.wait_for(devices, 600.0)
        joining = time.perf_counter() - joining
        before, own = processor_seconds(broker.process.pid), time.process_time()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            exchange.answers()
        figures = {
            "devices": float(devices),
            "seconds until all have joined": joining,
            "broker: % of a core": 100 * (processor_seconds(broker.process.pid) - before) / seconds,
            "server: % of a core": 100 * (time.process_time() - own) / seconds,
            "broker: MB": _megabytes(broker),
        }
        exchange.carrier.close(finished=True)
    return figures


def _megabytes(child: Child) -> float:
    return memory_bytes(child.process.pid) / 1e6


def flower(sizes: Sequence[int], times: int) -> dict[str, list[float]]:
    """Seconds per dispatch of `flwr run` with unmodified SuperNodes."""
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        app, out = home / "app", home / "out.json"
        (app / "overhead").mkdir(parents=True)
        (app / "overhead" / "__init__.py").touch()
        shutil.copyfile(deploy_flower.__file__, app / "overhead" / "app.py")
        words = json.dumps(" ".join(map(str, sizes)))
        (app / "pyproject.toml").write_text(_APP.format(out=json.dumps(str(out)), sizes=words, times=times))
        (home / "config.toml").write_text(f'[superlink.bench]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
        environment = flower_environment(home)
        with Children(home) as children:
            children.start("superlink", superlink_command(port), environment, home).wait_for_port(port)
            for number, own in enumerate(free_ports(DEVICES)):
                command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"]
                command += ["--host", "127.0.0.1", "--port", str(own)]
                children.start(f"supernode-{number}", command, environment, home)
            _flwr_run(app, environment)
            deadline = time.monotonic() + TIME_LIMIT
            while not out.exists():
                if time.monotonic() > deadline:
                    raise RuntimeError(f"Flower's run did not finish within {TIME_LIMIT:.0f} s")
                time.sleep(0.5)
            taken: dict[str, list[float]] = json.loads(out.read_text())
    return taken


def superlink_command(port: int) -> list[str]:
    """Command of a SuperLink on loopback for benchmarks: no TLS, every device is admitted."""
    words = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    return [*words, "--disable-runtime-dependency-installation"]


def flower_environment(home: Path) -> dict[str, str]:
    """Environment of Flower's programs: no telemetry, files in ``home``, this Python's programs first."""
    import os

    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    direct = ",".join(filter(None, (os.environ.get("NO_PROXY"), "localhost", "127.0.0.1")))
    return {**os.environ, **quiet, "PATH": path, "FLWR_HOME": str(home), "NO_PROXY": direct}


def _flwr_run(app: Path, environment: dict[str, str]) -> None:
    words = [str(Path(sys.executable).with_name("flwr")), "run", str(app), "bench"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"flwr run failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")


def measure(quick: bool = False, times: int = 8) -> BenchSection:
    """Measures Flower and ours; without `flwr` ours only."""
    sizes = SIZES[:2] if quick else SIZES
    taken = {MQTT: ours(sizes, times)}
    if shutil.which("flower-superlink", path=flower_environment(Path())["PATH"]) is not None:
        taken = {FLOWER: flower(sizes, times)} | taken
    busy = throughput(200 if quick else 2000)
    waiting = idle(100 if quick else IDLE_DEVICES, 10.0 if quick else IDLE_SECONDS)
    return _section(sizes, taken, busy, waiting, times)


def _section(
    sizes: Sequence[int],
    taken: dict[str, dict[str, list[float]]],
    busy: dict[str, float],
    waiting: dict[str, float],
    times: int,
) -> BenchSection:
    spreads = {name: {size: Spread.of(values) for size, values in found.items()} for name, found in taken.items()}
    titles = [f"{size / 1e6:g} MB" for size in sizes]
    rows = [(name, *(spreads[name][str(size)].text(3) for size in sizes)) for name in taken]
    figures: dict[str, Any] = {name: {s: v.figures() for s, v in found.items()} for name, found in spreads.items()}
    one = spreads[MQTT]["1000000"].median
    return BenchSection(
        "deploy",
        "Real devices",
        [
            BenchTable("s per dispatch beyond training", ("set-up", *titles), rows),
            _table(f"{IN_FLIGHT} dispatches of 0.25 MB in flight, {BUSY_DEVICES} devices", busy),
            _table("connected devices without work", waiting),
        ],
        [
            f"All processes on loopback, one dispatch at a time, {DEVICES} devices in turn; {times} dispatches after a "
            f"warm-up; median (lowest to highest). A device waits about {SECONDS} s instead of training; random "
            "weights both ways.",
            "Flower: `flwr run`, `flower-supernode`, `Grid.send_and_receive`, one array; no TLS, no authentication. "
            "cabafl: mutual TLS, access list, persistent sessions; light devices, several per process; without method, "
            "journal and evaluation.",
        ],
        figures | {"busy": busy, "idle": waiting},
        [Check("s beyond training, 1 MB model", one, GOAL, above=False)],
    )


def _table(title: str, figures: dict[str, float]) -> BenchTable:
    return BenchTable(title, ("", "measured"), [(name, f"{value:,.3g}") for name, value in figures.items()])
