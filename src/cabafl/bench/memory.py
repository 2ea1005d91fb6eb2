"""Peak memory of the server: CaBaFL and EvenKeel without training, in a new process per point.

``python -m cabafl.bench.memory DEVICES FEATURES SLOTS WEIGHTS GROUPS`` measures one point.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cabafl.bench import NEVER
from cabafl.bench.engine import no_training
from cabafl.bench.report import BenchSection, BenchTable, Check
from cabafl.engine.core import EngineSetup, Limits
from cabafl.engine.virtual import VirtualEngine
from cabafl.fleet import Fleet, gaussian_fleet
from cabafl.methods.base import Method
from cabafl.methods.cabafl import CaBaFL, CaBaFLParameters
from cabafl.methods.evenkeel import EvenKeel, EvenKeelParameters
from cabafl.rng import rng

MODELS = 2.5  # models the server may hold, as a multiple of K
CHUNK = 500  # devices per feature job
MEGABYTE = 1e6
SLACK = 4 * MEGABYTE  # for the interpreter and the allocator


class Point(NamedTuple):
    """The sizes of one measurement: devices N, feature length d, slots K, numbers per model, and for EvenKeel the
    number of updates it remembers (0: CaBaFL)."""

    devices: int
    width: int
    slots: int
    weights: int
    groups: int = 0

    @property
    def models(self) -> float:
        """Bytes allowed for models, and for updates that are remembered in half precision."""
        return (MODELS * self.slots * 4 + 2 * self.groups) * self.weights

    @property
    def method(self) -> Method:
        """The method that runs."""
        if self.groups:
            return EvenKeel(EvenKeelParameters(groups=self.groups).settled(self.devices, simulated=True))
        return CaBaFL(CaBaFLParameters(k=5, m=self.slots, feature_latency="instant"))

    @property
    def dispatches(self) -> int:
        """Enough for a second collection of CaBaFL, or for every group of EvenKeel to be remembered."""
        return 8 * (self.groups or self.slots)

    @property
    def features(self) -> float:
        """Bytes of one float32 feature table, N x d."""
        return 4.0 * self.devices * self.width


POINTS = [
    Point(100, 512, 10, 62_006),
    Point(100, 512, 10, 11_000_000),
    Point(100, 512, 20, 11_000_000),
    Point(10_000, 512, 10, 62_006),
    Point(100_000, 512, 10, 62_006),
    Point(1_000_000, 64, 10, 62_006),
    Point(10_000, 512, 10, 11_000_000, groups=100),
]


def _status(key: str) -> int:
    """The value of a key in Linux's /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def fleet_of(point: Point) -> Fleet:
    """A fleet whose devices have 10 to 500 samples."""
    return gaussian_fleet(rng(1, "bench sizes").integers(10, 500, point.devices), seed=1)


def run(point: Point) -> dict[str, int]:
    """Peak bytes of a run beyond the memory in use before its engine is built."""
    simulate(Point(20, 10, 2, 10), fleet_of(Point(20, 10, 2, 10)))  # libraries allocate on their first call
    devices = fleet_of(point)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM, the peak
    baseline = _status("VmRSS")
    uploads = simulate(point, devices)
    return {"peak": _status("VmHWM") - baseline, "uploads": uploads}


def simulate(point: Point, devices: Fleet) -> int:
    """Runs the method as long as its memory can grow; returns the number of uploads."""
    initial = np.zeros(point.weights, dtype=np.float32)
    chunks = [range(i, min(i + CHUNK, point.devices)) for i in range(0, point.devices, CHUNK)]
    executor = no_training(chunks, point.width, copy=True, kinds=point.groups)
    method = point.method
    setup = EngineSetup(
        method=method,
        executor=executor,
        initial=initial,
        emit=lambda event: None,
        seed=1,
        slots=point.slots,
        limits=Limits(seconds=None, max_dispatches=point.dispatches, evaluate_versions=NEVER),
        trainable=point.weights,
    )
    engine = VirtualEngine(setup, devices)
    engine.run()
    assert engine.ledger.feature_downloads >= (1 if point.groups else 2) * point.devices, "features must be collected"
    if isinstance(method, EvenKeel) and method.memory is not None:
        assert len(method.memory.updates) == point.groups, "every group must be remembered"
    return engine.ledger.uploads


def available() -> bool:
    """Whether this system reports peak memory in /proc (Linux)."""
    return Path("/proc/self/clear_refs").exists()


def measure(points: list[Point] | None = None) -> BenchSection:
    """Measures each point in a new process."""
    figures: list[dict[str, Any]] = []
    for point in (points or POINTS) if available() else []:
        command = [sys.executable, "-P", "-m", "cabafl.bench.memory", *map(str, point)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        allowed = point.models + point.features + _data(point) + SLACK
        figures.append({**point._asdict(), **json.loads(done.stdout), "allowed": allowed})
    fractions = [figure["peak"] / figure["allowed"] for figure in figures]
    return BenchSection(
        "memory",
        "Memory of the server",
        [BenchTable("Peak beyond the interpreter and its imports", _HEADINGS, [_row(figure) for figure in figures])],
        [
            "CaBaFL (two feature collections) or EvenKeel (remembered updates: its groups) in the engine, jobs that "
            "return a copy of their weights at once. Peak resident memory (VmHWM) beyond that in use before the engine "
            "is built; a new process per point.",
            f"Allowed: {MODELS} K models + 2 bytes per number of a remembered update + N x d float32 + the arrays that "
            f"describe the devices + {SLACK / MEGABYTE:.0f} MB for the interpreter.",
            *([] if available() else ["Not measured: this system has no /proc."]),
        ],
        {"points": figures},
        [Check("largest fraction of the allowed memory", max(fractions), 1.0, above=False)] if fractions else [],
    )


_HEADINGS = (
    "devices N",
    "feature length d",
    "slots K",
    "numbers per model",
    "remembered updates",
    "peak MB",
    "allowed MB",
    "fraction",
)


def _data(point: Point) -> int:
    """Bytes of the arrays that describe the devices.

    The fleet's own, 3 numbers per device in the engine (a counter, two positions) and 5 in the method (a counter, two
    positions, two inner products).
    """
    arrays = [value for value in vars(fleet_of(point)).values() if isinstance(value, np.ndarray)]
    return sum(array.nbytes for array in arrays) + (3 + 5) * 8 * point.devices


def _row(figure: dict[str, Any]) -> tuple[str, ...]:
    counts = (f"{figure[key]:,}" for key in Point._fields)
    peak, allowed = figure["peak"] / MEGABYTE, figure["allowed"] / MEGABYTE
    return *counts, f"{peak:,.1f}", f"{allowed:,.1f}", f"{peak / allowed:.2f}"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(Point(*map(int, sys.argv[1:6])))))
