"""Run folders written by 0.1: reports read them; resuming one is refused with a line that names the version."""

import json
import shutil
from pathlib import Path

import pytest

from cabafl import UserError, build_report, load_experiment, load_runs, resume
from cabafl.recording.metrics import accuracy_figures

FOLDERS = Path(__file__).parent.parent / "folders" / "0.1"


def test_a_report_reads_simulated_and_deployed_runs(tmp_path: Path) -> None:
    runs = load_runs([FOLDERS / "finished", FOLDERS / "deployed"])
    assert [run.clock for run in runs] == ["virtual", "wall"]
    for run in runs:
        written = json.loads((run.folder / "summary.json").read_text())
        assert run.summary["versions"] == written["aggregations"] > 0
        assert run.metrics[-1].time == run.summary["time"] == written["virtual_time"] > 0
        log = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
        assert run.counts.end == [e["t"] for e in log if e["event"] in ("dispatch", "upload", "evaluation")][-1]
        assert run.counts.selections.total() == sum(e["event"] == "dispatch" for e in log)
    written_page = build_report(runs, tmp_path / "report").html.read_text()
    assert "cabafl" in written_page
    assert "fedasync" in written_page


def test_figures_of_the_accuracy_are_computed_as_today(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDERS / "finished", tmp_path / "run")
    written = json.loads((folder / "summary.json").read_text())
    [run] = load_runs(folder)
    assert run.summary["best_window_mean"] == accuracy_figures(run.metrics)["best_window_mean"]
    assert "stability_detrended" not in written
    assert run.summary["stability_detrended"] == accuracy_figures(run.metrics)["stability_detrended"]
    assert len({row.version for row in run.metrics}) < len(run.metrics)


def test_a_finished_run_is_not_resumed() -> None:
    assert resume(FOLDERS / "finished") is None


def test_an_interrupted_run_is_refused_and_not_changed(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDERS / "interrupted", tmp_path / "run")
    with pytest.raises(UserError, match=r"checkpoint\.json: format 1, written by cabafl 0\.1; accepted: format 5"):
        resume(folder)
    for path in (FOLDERS / "interrupted").iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes(), path.name


def test_an_interrupted_run_without_a_checkpoint_starts_again(tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDERS / "interrupted", tmp_path / "run")
    (folder / "checkpoint.json").unlink()
    result = resume(folder, settings=["run.workers=0"])
    assert result is not None
    assert (folder / "metrics.csv").read_text().startswith("time,version,")
    assert [run.summary["versions"] for run in load_runs([folder])] == [result.summary["versions"]]


def test_a_renamed_key_is_read_under_its_old_name(tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text("[run]\nevaluate_aggregations = 7\n")
    assert load_experiment(file).run.evaluate_versions == 7
    with pytest.raises(UserError, match="evaluate_aggregations"):
        load_experiment(file, ["run.evaluate_versions=3"])
