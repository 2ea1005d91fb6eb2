"""The files of short runs have the recorded checksums: refactoring must not change results."""

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.curves import leave_pixels_out
from tests.golden.arithmetic import fixed_arithmetic, probe
from tests.golden.cases import CASES, SUMS, run_anywhere

GOLDEN = json.loads(SUMS.read_text(encoding="utf-8"))
WORKERS = {"cabafl with faults": 1, "fedavg with faults": 1}


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    with fixed_arithmetic() as process:
        process.submit(leave_pixels_out).result()
        yield process


@pytest.fixture(scope="module")
def differences(process: ProcessPoolExecutor) -> list[str]:
    """What this machine computes differently from the one that recorded the checksums."""
    here = process.submit(probe).result()
    return [part for part in here if here[part] != GOLDEN["arithmetic"].get(part)]


def test_every_case_is_recorded() -> None:
    assert GOLDEN["sums"].keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_same_bytes_as_recorded(name: str, process: ProcessPoolExecutor, differences: list[str]) -> None:
    if differences:
        how = "before a change, record the sums of this machine: python -m tests.golden.cases"
        pytest.skip(f"other last bits than in the recorded runs ({', '.join(differences)}); {how}")
    assert process.submit(run_anywhere, name).result() == GOLDEN["sums"][name]


@pytest.mark.parametrize("name", WORKERS)
def test_same_bytes_with_workers(name: str, process: ProcessPoolExecutor) -> None:
    """Checks something on every machine, also where the recorded checksums do not apply."""
    inline, pooled = (process.submit(run_anywhere, name, f"run.workers={n}") for n in (0, WORKERS[name]))
    assert inline.result() == pooled.result()
