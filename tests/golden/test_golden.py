"""The files of short runs have the recorded checksums: refactoring must not change results."""

import json
from pathlib import Path

import pytest

from tests.golden.cases import CASES, SUMS, arithmetic, run_case

GOLDEN = json.loads(SUMS.read_text(encoding="utf-8"))


def test_every_case_is_recorded() -> None:
    assert GOLDEN["sums"].keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_same_bytes_as_recorded(name: str, tmp_path: Path) -> None:
    if arithmetic() != GOLDEN["arithmetic"]:
        pytest.skip("this processor, or this version of torch, rounds differently from the recorded runs")
    assert run_case(name, tmp_path) == GOLDEN["sums"][name]
