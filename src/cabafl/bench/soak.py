"""A long run of a large fleet on loopback, with kills: `cabafl bench soak`.

Real sessions and real TLS; light devices, many per process, that wait instead of training. Broker and server are
measured while it goes on. At the end the record is checked: no job counted twice, none lost without a word.
"""

import json
import os
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cabafl.bench.fleet_processes import disk_bytes, make_local_fleet, memory_bytes, processor_seconds, start_light
from cabafl.bench.report import BenchSection, BenchTable, Check
from cabafl.deployment.broker import start_broker
from cabafl.deployment.folder.layout import FleetFolder
from cabafl.deployment.server.operator import STATUS
from cabafl.files import as_json, write_atomic
from cabafl.processes.children import Child, Children

SAMPLE_INTERVAL = 10.0  # seconds between two measurements
GRACE = 180.0  # seconds for the server to finish after its time is up
VICTIMS = 50  # devices that are killed
LIGHT_SECONDS = 2.0  # mean time of a job
MODELS = {  # settings of the server's experiment, by size of the model; light devices need no data
    "small": ["data.dataset=synthetic", "data.partition=iid", "model.name=mlp"],
    "45 MB": [
        "data.dataset=mnist5k",
        "data.partition=iid",
        "model.name=resnet18",
        "data.train_limit=2000",
        "data.test_limit=10",
    ],
}


@dataclass(frozen=True)
class Sample:
    """One measurement."""

    seconds: float
    broker_mb: float
    server_mb: float
    disk_mb: float
    broker_cpu: float  # processor seconds so far
    uploads: int
    online: int


@dataclass
class Soak:
    """A soak under way. ``kills`` are the times of what is done to it, as shares of its length."""

    folder: Path
    devices: int
    minutes: float
    model: str
    method: str
    slots: int
    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self) -> BenchSection:
        """Starts everything, disturbs it, measures it, stops it."""
        fleet = make_local_fleet(self.folder / "fleet", self.devices)
        victims = range(self.devices - min(VICTIMS, self.devices // 4), self.devices)
        with ExitStack() as stack:
            children = stack.enter_context(Children(self.folder / "logs"))
            broker = start_broker(children, fleet)
            start_light(children, fleet, range(victims.start), LIGHT_SECONDS, self._width())
            server = self._start_server(children, fleet, 0)
            processes = {"broker": broker, "server": server}
            processes["victims"] = start_light(children, fleet, victims, LIGHT_SECONDS, self._width())[0]
            self._watch(children, fleet, processes, victims)
        return self._section()

    def _width(self) -> int:
        """Number of features of a light device's answers, as the server expects them."""
        from cabafl.assembly import make_server_task
        from cabafl.config import load_experiment

        return make_server_task(load_experiment(None, self._settings())).feature_width("activations")

    def _settings(self) -> list[str]:
        return [
            *MODELS[self.model],
            f"data.devices={self.devices}",
            f"fleet.slots={self.slots}",
            f"run.wall_time={60 * self.minutes}",
            "run.evaluate_every=60",
            "run.checkpoint_every=60",
            f"method.name={self.method}",
        ]

    def _start_server(self, children: Children, fleet: FleetFolder, turn: int) -> Child:
        words = ["deploy", "server", str(fleet.path), *self._settings(), "--out", str(self.folder / "run")]
        command = [sys.executable, "-P", "-m", "cabafl", *words, "--log", "json", "--quiet"]
        return children.start(f"server-{turn}", command, dict(os.environ), self.folder)

    def _disturbances(self) -> Iterator[tuple[float, str]]:
        for share, what in ((0.2, "victims"), (0.35, "server"), (0.5, "broker"), (0.65, "back"), (0.75, "server")):
            yield share * 60 * self.minutes, what

    def _watch(self, children: Children, fleet: FleetFolder, processes: dict[str, Child], victims: range) -> None:
        started = self._wait_for_start(fleet, processes["server"])
        agenda = list(self._disturbances())
        turn = 0
        while processes["server"].process.poll() is None:
            now = time.monotonic() - started
            if now > 60 * self.minutes + GRACE:
                raise RuntimeError(f"the server did not finish; see {processes['server'].log}")
            self._measure(now, fleet, processes)
            if agenda and now >= agenda[0][0]:
                turn += 1
                self._disturb(agenda.pop(0)[1], turn, children, fleet, processes, victims)
            time.sleep(SAMPLE_INTERVAL)
        if processes["server"].process.returncode != 0:
            raise RuntimeError(f"the server failed: {processes['server'].last_line()}")

    def _wait_for_start(self, fleet: FleetFolder, server: Child) -> float:
        while self._status(fleet).get("state") != "running":
            if server.process.poll() is not None:
                raise RuntimeError(f"the server ended: {server.last_line()}")
            time.sleep(1.0)
        return time.monotonic()

    def _disturb(
        self,
        what: str,
        turn: int,
        children: Children,
        fleet: FleetFolder,
        processes: dict[str, Child],
        victims: range,
    ) -> None:
        if what == "back":
            processes["victims"] = start_light(children, fleet, victims, LIGHT_SECONDS, self._width())[0]
            self.notes.append(f"{len(victims)} devices return")
            return
        child = processes[what]
        os.kill(child.process.pid, signal.SIGTERM if what == "broker" else signal.SIGKILL)
        child.process.wait()
        self.notes.append(f"{what}: killed" if what != "broker" else "broker: restarted")
        if what == "broker":
            processes[what] = start_broker(children, fleet)
        elif what == "server":
            processes[what] = self._start_server(children, fleet, turn)

    def _status(self, fleet: FleetFolder) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((fleet.state / STATUS).read_text())
        except (OSError, ValueError):
            return {}
        return found

    def _measure(self, now: float, fleet: FleetFolder, processes: dict[str, Child]) -> None:
        status = self._status(fleet)
        try:
            sample = Sample(
                now,
                memory_bytes(processes["broker"].process.pid) / 1e6,
                memory_bytes(processes["server"].process.pid) / 1e6,
                (disk_bytes(self.folder / "run") + disk_bytes(fleet.state)) / 1e6,
                processor_seconds(processes["broker"].process.pid),
                int(status.get("uploads", 0)),
                int(status.get("online", 0)),
            )
        except OSError:
            return  # the process has just ended
        self.samples.append(sample)
        write_atomic(self.folder / "samples.json", as_json({"samples": [asdict(each) for each in self.samples]}))

    def _section(self) -> BenchSection:
        record = read_record(self.folder / "run")
        overhead = sorted(record.overheads)
        figures: dict[str, Any] = {
            "devices": self.devices,
            "minutes": self.minutes,
            "uploads": record.uploads,
            "uploads per second": record.uploads / (60 * self.minutes),
            "overhead, median (s)": statistics.median(overhead),
            "overhead, 99th percentile (s)": overhead[int(0.99 * (len(overhead) - 1))],
            "jobs counted twice": record.twice,
            "jobs lost without a word": record.silent,
            "jobs lost and counted": dict(record.losses),
            "jobs in flight at the end": record.open,
        }
        memory = [f"{figure(self.samples, share)}" for share in (0.1, 0.5, 0.9)]
        rows = [(name, f"{value:,.4g}" if isinstance(value, float) else str(value)) for name, value in figures.items()]
        growth = [("at 10 %", memory[0]), ("at 50 %", memory[1]), ("at 90 %", memory[2])]
        return BenchSection(
            "soak",
            "Soak of a fleet on loopback",
            [
                BenchTable(f"{self.method}, model: {self.model}", ("", "measured"), rows),
                BenchTable("over time", ("moment", "MB of broker, server, disk"), growth),
            ],
            [*self.notes, "Overhead: from dispatch to upload, minus the device's own time, outages included."],
            figures | {"samples": [asdict(sample) for sample in self.samples]},
            [
                Check("jobs counted twice", record.twice, 0, above=False),
                Check("jobs lost without a word", record.silent, 0, above=False),
            ],
        )


def figure(samples: list[Sample], share: float) -> str:
    """Memory and disk at a moment of the run."""
    at = samples[int(share * (len(samples) - 1))]
    return f"{at.broker_mb:,.0f}, {at.server_mb:,.0f}, {at.disk_mb:,.0f}"


@dataclass(frozen=True)
class JobTally:
    """What the events of a run add up to. ``silent`` jobs neither ended nor are they open at the end."""

    uploads: int
    twice: int
    silent: int
    open: int
    losses: Counter[str]
    overheads: list[float]


def read_record(run: Path) -> JobTally:
    """Follows every job through ``events.jsonl``."""
    sent: dict[int, float] = {}
    ended: Counter[int] = Counter()
    seconds: dict[int, float] = {}
    losses: Counter[str] = Counter()
    overheads = []
    last = 0.0
    with (run / "events.jsonl").open(encoding="utf-8") as file:
        for line in file:
            event = json.loads(line)
            last, kind = event["time"], event["event"]
            if kind == "dispatch":
                sent[event["job"]] = last
            elif kind == "answer":
                seconds[event["job"]] = event["seconds"]
            elif kind == "upload":
                ended[event["job"]] += 1
                overheads.append(last - sent[event["job"]] - seconds[event["job"]])
            elif kind == "loss":
                ended[event["job"]] += 1
                losses[event["reason"]] += 1
    open_jobs = [job for job in sent if not ended[job]]
    silent = sum(1 for job in open_jobs if last - sent[job] > 600.0)
    twice = sum(1 for count in ended.values() if count > 1)
    uploads = sum(ended.values()) - sum(losses.values())
    return JobTally(uploads, twice, silent, len(open_jobs) - silent, losses, overheads)
