"""A run that stops at given times and continues ends in the same bytes as one that runs through."""

import json
from pathlib import Path

import pytest

from cabafl import simulate
from cabafl.config import load_experiment
from cabafl.errors import UserError
from cabafl.lifecycle.simulate import resume
from cabafl.lifecycle.stopping import Paused
from tests.lasting import LastingPools
from tests.runs import same_bytes, settings

pytestmark = pytest.mark.usefixtures("no_pixels")


def last_time(folder: Path) -> float:
    return float(json.loads((folder / "events.jsonl").read_text().splitlines()[-1])["time"])


@pytest.mark.parametrize("method", ["cabafl", "fedavg"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_stopped_at_two_times_ends_in_the_same_bytes(
    workers: int, method: str, lasting: LastingPools, tmp_path: Path
) -> None:
    simulate(load_experiment(None, settings(method, "run.workers=0")), tmp_path / "whole")
    experiment = load_experiment(None, settings(method, f"run.workers={workers}"))
    folder = tmp_path / "parts"
    with lasting.serving(), pytest.raises(Paused):
        simulate(experiment, folder, until=60 / 9)
    assert 0 < last_time(folder) <= 60 / 9
    with lasting.serving(), pytest.raises(Paused) as paused:
        resume(folder, until=20.0)
    assert paused.value.time == 20.0
    assert 60 / 9 < last_time(folder) <= 20
    assert not (folder / "summary.json").exists()
    assert "20.0," in (folder / "metrics.csv").read_text()  # what happens at that very time is included
    with lasting.serving():
        assert resume(folder, until=60.0) is not None  # the end of the run
    same_bytes(tmp_path / "whole", folder)
    one, other = (json.loads((path / "summary.json").read_text()) for path in (tmp_path / "whole", folder))
    assert one | {"wall_seconds": 0} == other | {"wall_seconds": 0}


def test_a_time_that_is_past_changes_nothing(tmp_path: Path) -> None:
    experiment = load_experiment(None, settings("cabafl", "run.workers=0"))
    folder = tmp_path / "run"
    with pytest.raises(Paused):
        simulate(experiment, folder, until=30.0)
    before = {name: (folder / name).read_bytes() for name in ("events.jsonl", "metrics.csv")}
    for _ in range(2):
        with pytest.raises(Paused) as paused:
            resume(folder, until=10.0)
        assert 20.0 < paused.value.time <= 30.0  # where the run is, not where it has been
    assert {name: (folder / name).read_bytes() for name in before} == before
    simulate(experiment, tmp_path / "whole")
    resume(folder)
    same_bytes(tmp_path / "whole", folder)


def test_a_time_after_the_end_is_no_limit(tmp_path: Path) -> None:
    experiment = load_experiment(None, settings("fedavg", "run.workers=0"))
    assert simulate(experiment, tmp_path / "run", until=1e6).summary["time"] == 60
    by_jobs = load_experiment(None, settings("fedavg", "run.workers=0", "run.max_dispatches=9"))
    with pytest.raises(Paused):
        simulate(by_jobs, tmp_path / "jobs", until=1.0)
    assert resume(tmp_path / "jobs", until=59.0) is not None  # the last job is back before


@pytest.mark.parametrize("until", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wrong_time_is_refused_before_anything_is_written(until: float, tmp_path: Path) -> None:
    experiment = load_experiment(None, settings("fedavg", "run.workers=0"))
    with pytest.raises(UserError, match=r"^until = .*: accepted: a virtual time"):
        simulate(experiment, tmp_path / "run", until=until)
    assert not (tmp_path / "run").exists()


def test_without_a_folder_there_is_nothing_to_continue() -> None:
    with pytest.raises(UserError, match="needs a run folder"):
        simulate(load_experiment(None, settings("fedavg", "run.workers=0")), until=5.0)
