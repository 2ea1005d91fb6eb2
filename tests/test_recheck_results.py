"""Kept results are compared with what the program makes now."""

import shutil
from pathlib import Path

import pytest

from cabafl import load_experiment, simulate
from tests.runs import settings
from tools.recheck_results import recheck


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept") / "run"
    simulate(load_experiment(None, settings("fedavg", "run.workers=0")), out=folder)
    return folder


def test_the_start_of_a_run_is_made_again(kept: Path) -> None:
    assert recheck(kept, 25.0) is None


def test_a_number_that_differs_is_named(kept: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(kept, tmp_path / "run")
    lines = (changed / "metrics.csv").read_text().splitlines()
    cells = lines[3].split(",")
    assert cells[0] == "10.0"
    lines[3] = ",".join([*cells[:2], "0.123", *cells[3:]])
    (changed / "metrics.csv").write_text("\n".join(lines) + "\n")
    assert recheck(changed, 5.0) is None
    found = recheck(changed, 20.0)
    assert found == f"accuracy at 10.0 s: kept 0.123, now {cells[2]}"


def test_another_method_or_a_missing_evaluation_is_a_difference(kept: Path) -> None:
    assert recheck(kept, 30.0, ["method.name=fedasync"]) is not None
    assert recheck(kept, 30.0, ["run.evaluate_every=10"]) is not None
