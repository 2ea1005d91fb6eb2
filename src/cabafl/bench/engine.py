"""The engine alone: events per second when training costs nothing."""

import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cabafl.bench import NEVER
from cabafl.bench.report import BenchSection, BenchTable, Check
from cabafl.bench.timing import Spread, in_turns, ratio
from cabafl.engine.core import EngineSetup, Limits
from cabafl.engine.virtual import VirtualEngine
from cabafl.execution.base import ExecutorJob, FeatureJob, TrainJob
from cabafl.execution.inline import LazyExecutor
from cabafl.fleet import gaussian_fleet
from cabafl.learning.evaluation import Score
from cabafl.learning.task import TrainingResult
from cabafl.methods.base import Job, LossReason, Method, Server, Upload
from cabafl.recording.folder import RunFolder
from cabafl.rng import rng

WEIGHTS = 10  # numbers per model: so small that checking uploads costs next to nothing


def no_training(
    features: list[range] | None = None, width: int = 0, copy: bool = False, kinds: int = 0
) -> LazyExecutor:
    """An executor that returns every model unchanged (``copy``: as a new array, like training), and random features; of
    ``kinds`` of devices, if there are any, each has a feature of its own that stands out."""

    def work(job: ExecutorJob) -> Any:
        if isinstance(job, TrainJob):
            return TrainingResult(job.weights.copy() if copy else job.weights)
        if isinstance(job, FeatureJob):
            found = rng(1, "bench features", job.devices.start).random((len(job.devices), width))
            if kinds:
                found[range(len(job.devices)), np.array(job.devices) % kinds] += width
            return found
        return Score(((0.0,),), 0.0, 1)

    return LazyExecutor(1, features or [], work)


class UniformRefill(Method):
    """Sends each uploaded model to a random idle device, as FedAsync does, but without merging."""

    name = "uniform-refill"
    kind = "asynchronous"
    paper = "for benchmarks"

    def __init__(self, publishes: bool) -> None:
        self.publishes = publishes

    def start(self, server: Server) -> None:
        """Fills the slots."""
        for device in server.idle.draw_many(server.random("start"), server.slots):
            server.dispatch(device, server.initial)

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Dispatches one model for each upload."""
        if self.publishes:
            server.publish(upload.weights)
        server.dispatch(server.idle.draw(server.random("refill")), upload.weights)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """Never called: there are no faults in this benchmark."""
        raise AssertionError(reason)


@dataclass(frozen=True)
class Load:
    """One row: fleet size, models in flight, and whether every upload publishes a version."""

    devices: int
    slots: int
    publishes: bool = False

    @property
    def label(self) -> str:
        """The row's first cell."""
        more = ", a version published per upload" if self.publishes else ""
        return f"{self.devices:,} devices, {self.slots:,} in flight{more}"


def event_seconds(load: Load, events: int) -> float:
    """Wall seconds per event: one upload handled and one job dispatched, both written to ``events.jsonl``.

    The initial dispatches that fill the slots are not timed.
    """
    sizes = rng(1, "bench sizes").integers(10, 500, load.devices)
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder.create(Path(scratch) / "run", "", {})
        setup = EngineSetup(
            method=UniformRefill(load.publishes),
            executor=no_training(),
            initial=np.zeros(WEIGHTS, dtype=np.float32),
            emit=folder,
            seed=1,
            slots=load.slots,
            limits=Limits(seconds=None, max_dispatches=NEVER, evaluate_versions=NEVER),
            trainable=WEIGHTS,
        )
        engine = VirtualEngine(setup, gaussian_fleet(sizes, seed=1))
        engine.start()
        folder.positions()  # flushes what the start has written
        started = time.perf_counter()
        for _ in range(events):
            engine.step()
        elapsed = time.perf_counter() - started
        folder.close()
    assert engine.ledger.uploads == events, "every step must handle one upload"
    assert engine.ledger.dispatches == load.slots + events, "every upload must be followed by one dispatch"
    return elapsed / events


def loads(fleets: tuple[int, ...], slots: int = 100) -> list[Load]:
    """Each fleet with ``slots`` and with a tenth of its devices in flight; the middle one also publishing versions."""
    rows = []
    for devices in fleets:
        rows += [Load(devices, count) for count in dict.fromkeys((min(slots, devices // 2), devices // 10))]
    middle = fleets[len(fleets) // 2]
    return [*rows, Load(middle, min(slots, middle // 2), publishes=True)]


def measure(
    events: int = 100_000, repetitions: int = 5, fleets: tuple[int, ...] = (1_000, 100_000, 1_000_000)
) -> BenchSection:
    """Events per second for growing fleets, and the growth of the cost per event."""
    rows = loads(fleets)
    taken = in_turns({row.label: partial(event_seconds, row, events) for row in rows}, repetitions)
    spreads = {row: Spread.of([1e6 * value for value in taken[row.label]]) for row in rows}
    small, middle, large = (Load(fleets[i], fleets[i] // 10) for i in (0, len(fleets) // 2, -1))
    growth = ratio(taken[large.label], taken[small.label])
    judged = [row for row in rows if row.devices == middle.devices and not row.publishes]
    cells = [(row.label, f"{1e6 / time.median:,.0f}", time.text(1)) for row, time in spreads.items()]
    return BenchSection(
        "engine",
        "The engine alone",
        [BenchTable("Events per second, no-op training", ("fleet", "events/s", "µs per event"), cells)],
        _notes(events, repetitions),
        {
            "events": events,
            "rows": [{**asdict(row), "microseconds": time.figures()} for row, time in spreads.items()],
            "growth": growth.figures(),
        },
        [
            *(Check(f"events/s, {row.label}", 1e6 / spreads[row].median, 50_000) for row in judged),
            Check(f"cost per event: {large.label}, over {small.label}", growth.median, 3.0, above=False),
        ],
    )


def _notes(events: int, repetitions: int) -> list[str]:
    return [
        "An event is one upload handled and one job dispatched to a device drawn uniformly from the idle ones, both "
        "logged to events.jsonl through the run folder (written, not synced).",
        "Not included: training, aggregation, evaluation, start-up and the initial dispatches that fill the slots. "
        f"Models of {WEIGHTS} numbers. The target for growth applies with a tenth of the fleet in flight.",
        f"{events:,} events per repetition, {repetitions} repetitions in turns; median (lowest to highest).",
    ]
