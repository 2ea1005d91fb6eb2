"""Reports on runs that are interrupted or still going on."""

from pathlib import Path

import pytest

from cabafl import UserError, build_report, load_experiment, load_runs, simulate
from cabafl.lifecycle.simulate import resume
from cabafl.lifecycle.stopping import Paused
from tests.runs import settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    simulate(load_experiment(None, settings("fedavg", "run.workers=0")), tmp_path / "whole")
    with pytest.raises(Paused):
        simulate(load_experiment(None, settings("cabafl", "run.workers=0")), tmp_path / "half", until=30)
    return tmp_path


def test_unfinished_runs_are_left_out_unless_they_are_asked_for(folder: Path) -> None:
    left_out: list[str] = []
    assert [run.label for run in load_runs(folder, warn=left_out.append)] == ["fedavg"]
    assert len(left_out) == 1
    labels = [run.label for run in load_runs(folder, unfinished=True)]
    assert labels == ["cabafl (seed 1, unfinished: 30 s)", "fedavg"]
    written = build_report(load_runs(folder, unfinished=True), folder / "report")
    assert "unfinished: 30 s" in written.html.read_text()


def test_the_figures_so_far_are_those_of_a_run_of_that_length(folder: Path) -> None:
    so_far = next(run for run in load_runs(folder, unfinished=True) if "cabafl" in run.label)
    resume(folder / "half", settings=["run.virtual_time=30"])
    done = next(run for run in load_runs(folder) if run.label == "cabafl")
    for key, value in so_far.summary.items():
        if key not in ("wall_seconds", "unfinished"):
            assert done.summary[key] == pytest.approx(value), key


def test_a_torn_line_is_no_damage_while_a_run_goes_on(folder: Path) -> None:
    for name, torn in (("events.jsonl", '{"time":31.0,"event":"upl'), ("metrics.csv", "35.0,12,0.5")):
        with (folder / "half" / name).open("a") as file:
            file.write(torn)
    assert len(load_runs(folder, unfinished=True)) == 2
    with (folder / "whole/events.jsonl").open("a") as file:
        file.write('{"time":61.0,"event":"upload","job"')
    with pytest.raises(UserError, match=r"events.jsonl: not an event of a run"):
        _ = next(run for run in load_runs(folder) if run.label == "fedavg").counts


def test_a_run_without_an_evaluation_is_left_out(folder: Path) -> None:
    (folder / "half/metrics.csv").write_text("")
    left_out: list[str] = []
    assert len(load_runs(folder, warn=left_out.append, unfinished=True)) == 1
    assert "not finished" in left_out[0]
