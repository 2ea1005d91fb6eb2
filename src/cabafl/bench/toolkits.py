"""The same FedAvg workload on other toolkits: every measurement in a new process, the toolkits in turns.

The code for other toolkits is in the folder benchmarks/ of the repository, not in the package.
"""

import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from cabafl.bench.flute import Flute, parsed
from cabafl.bench.report import BenchSection, BenchTable, Check
from cabafl.bench.timing import Spread, ratio

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
TIME_LIMIT = 900  # seconds per measurement
REPOSITORY = Path(__file__).parents[3]  # of a clone; benchmarks/ is missing beside an installed wheel


class Toolkit(NamedTuple):
    """A toolkit, the packages it needs, and the module that measures it."""

    label: str
    needs: tuple[str, ...]
    module: str
    arguments: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """Whether all packages it needs are installed."""
        return all(find_spec(package) is not None for package in self.needs)

    @property
    def in_clone(self) -> bool:
        """Whether its module is in benchmarks/, which only a clone of the repository has."""
        return self.module.startswith("benchmarks.")

    @property
    def title(self) -> str:
        """The label with the version of the measured package."""
        try:
            return f"{self.label} {version(self.needs[0])}" if self.needs else self.label
        except PackageNotFoundError:
            return self.label


ONE, INLINE = "cabafl, 1 worker", "cabafl, no worker (in the main process)"
PFL, FLOWER = "pfl", "Flower simulation (Ray, all cores)"
TOOLKITS = [
    Toolkit(ONE, (), "cabafl.bench.flute_cabafl", ("1",)),
    Toolkit(INLINE, (), "cabafl.bench.flute_cabafl", ("0",)),
    Toolkit(PFL, ("pfl",), "benchmarks.flute_pfl"),
    Toolkit(FLOWER, ("flwr", "ray"), "benchmarks.flute_flower"),
]


def measure_one(toolkit: Toolkit, flute: Flute) -> dict[str, Any]:
    """Runs one measurement in a new process: seconds of the rounds, seconds before them, local steps counted.

    Raises `RuntimeError` if the measurement fails, or if its module is missing because cabafl runs from a wheel.
    """
    if toolkit.in_clone and not (REPOSITORY / "benchmarks").is_dir():
        raise RuntimeError("benchmarks/ not found: run `cabafl bench toolkits` from a clone of the repository")
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", toolkit.module, str(flute.rounds), str(flute.clients), *toolkit.arguments]
        environment = {**os.environ, **QUIET, "FLWR_HOME": scratch}
        started = time.time()
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=environment,
                cwd=REPOSITORY if toolkit.in_clone else None,
                timeout=TIME_LIMIT,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{toolkit.label}: the measurement did not finish within {TIME_LIMIT} s") from None
    if done.returncode != 0:
        raise RuntimeError(f"{toolkit.label}: the measurement failed:\n{done.stderr[-3000:]}")
    result = parsed(done.stdout)
    assert result["steps"] == flute.steps, "every toolkit must do the same steps"
    return {**result, "start_up": result["began"] - started}


def _in_turns(
    toolkits: list[Toolkit], flute: Flute, repetitions: int
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Results by toolkit, and the error of each other toolkit that failed; a failure of cabafl itself is raised."""
    taken: dict[str, list[dict[str, Any]]] = {toolkit.label: [] for toolkit in toolkits}
    failed: dict[str, str] = {}
    for _ in range(repetitions):
        for toolkit in toolkits:
            if toolkit.label in failed:
                continue
            try:
                taken[toolkit.label].append(measure_one(toolkit, flute))
            except RuntimeError as error:
                if not toolkit.needs:
                    raise
                failed[toolkit.label] = " ".join(str(error).split())[-200:]
                del taken[toolkit.label]
    return taken, failed


def measure(flute: Flute | None = None, repetitions: int = 3, toolkits: list[Toolkit] | None = None) -> BenchSection:
    """Measures the installed toolkits in turns; the others get a row that says why they are missing."""
    flute = flute or Flute()
    toolkits = toolkits or TOOLKITS
    present = [toolkit for toolkit in toolkits if toolkit.installed]
    taken, failed = _in_turns(present, flute, repetitions)
    rounds = {label: [result["seconds"] for result in results] for label, results in taken.items()}
    starts = {label: [result["start_up"] for result in results] for label, results in taken.items()}
    ratios = {label: ratio(seconds, rounds[ONE]) for label, seconds in rounds.items()}
    rows = [
        _row(toolkit, flute, rounds[toolkit.label], starts[toolkit.label], ratios[toolkit.label])
        if toolkit.label in rounds
        else (toolkit.title, failed.get(toolkit.label, "not installed"), "", "", "")
        for toolkit in toolkits
    ]
    return BenchSection(
        "toolkits",
        "The same workload on other toolkits",
        [BenchTable(_title(flute), _HEADINGS, rows)],
        _notes(flute, repetitions),
        {
            "rounds": flute.rounds,
            "steps": flute.steps,
            "seconds": {label: Spread.of(values).figures() for label, values in rounds.items()},
            "start_up": {label: Spread.of(values).figures() for label, values in starts.items()},
            "times_cabafl_with_1_worker": {label: spread.figures() for label, spread in ratios.items()},
            "not_installed": [toolkit.label for toolkit in toolkits if toolkit not in present],
            "failed": failed,
        },
        [
            Check(f"{label}: time relative to cabafl with 1 worker", ratios[label].median, target)
            for label, target in ((FLOWER, 10.0), (PFL, 1.0))
            if label in ratios
        ],
    )


_HEADINGS = ("toolkit", "s for all rounds", "ms per round", "relative to cabafl with 1 worker", "start-up s")


def _title(flute: Flute) -> str:
    return (
        f"FedAvg, logistic regression 784 to 10, {flute.clients:,} clients, {flute.per_round} per round, "
        f"{flute.rounds} rounds, {flute.steps:,} local steps"
    )


def _row(toolkit: Toolkit, flute: Flute, seconds: list[float], starts: list[float], times: Spread) -> tuple[str, ...]:
    spread = Spread.of(seconds)
    per_round = f"{1e3 * spread.median / flute.rounds:.1f}"
    return toolkit.title, spread.text(2), per_round, times.text(2), Spread.of(starts).text(1)


def _notes(flute: Flute, repetitions: int) -> list[str]:
    return [
        f"{flute.samples} generated samples per client, batch {flute.batch}, learning rate {flute.learning_rate}, "
        "1 epoch, no momentum; one torch thread per process; all toolkits must count the same local steps.",
        "Timed: the rounds after a warm-up round. Not included: start-up (last column: imports, generating the data, "
        "starting workers, the warm-up round), evaluation, recording of results.",
        "cabafl shuffles the samples and simulates virtual time; pfl does neither; Flower runs its own FedAvg strategy "
        "with one Ray actor per core and an in-memory link polled every 0.1 s.",
        f"{repetitions} repetitions in turns, each in a new process; median (lowest to highest).",
    ]
