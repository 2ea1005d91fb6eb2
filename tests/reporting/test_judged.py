"""All runs of a report are judged by the same kind of model, and the report says which."""

from pathlib import Path

import pytest

from cabafl import load_runs, simulate
from cabafl.config import load_experiment
from cabafl.errors import UserError
from cabafl.reporting.report import build_report
from cabafl.reporting.runs import judged
from tests.cli.program import cabafl_here
from tests.runs import settings

AVERAGED = ["run.average=polynomial", "run.workers=0"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with averaged models in ``averaged``, one without in ``plain``."""
    root = tmp_path_factory.mktemp("judged")
    for method in ("fedbuff", "fedasync"):
        simulate(load_experiment(None, settings(method, *AVERAGED)), root / "averaged" / method)
    simulate(load_experiment(None, settings("fedavg", "run.workers=0")), root / "plain" / "fedavg")
    return root


def test_runs_with_averaged_models_are_judged_by_them(folders: Path, tmp_path: Path) -> None:
    runs = load_runs(folders / "averaged")
    chosen, by = judged(runs)
    assert by == "averaged"
    for run, raw in zip(chosen, runs, strict=True):
        assert [row.value for row in run.metrics] == [row.averaged_value for row in raw.metrics]
        assert run.summary["best_window_mean"] == raw.summary["averaged"]["best_window_mean"]
        assert run.summary["raw"]["best_window_mean"] == raw.summary["best_window_mean"]
    written = build_report(runs, tmp_path)
    page = written.html.read_text()
    assert "those of the averaged models" in page
    accuracy = written.tables[0]
    assert "raw [%]" in accuracy.headings
    assert accuracy.rows[0][accuracy.headings.index("raw [%]")].text.startswith(
        f"{100 * runs[0].summary['best_window_mean']:.2f}"
    )


def test_one_run_without_an_average_makes_all_raw(folders: Path, tmp_path: Path) -> None:
    runs = load_runs(folders)
    chosen, by = judged(runs)
    assert by == "raw"
    assert [run.metrics for run in chosen] == [run.metrics for run in runs]
    written = build_report(runs, tmp_path)
    assert "those of the published models, not of their averages" in written.html.read_text()
    assert "raw [%]" not in written.tables[0].headings
    with pytest.raises(UserError, match="has no averaged model"):
        build_report(runs, tmp_path, by="averaged")


def test_a_report_of_runs_without_averages_is_as_before(folders: Path, tmp_path: Path) -> None:
    written = build_report(load_runs(folders / "plain"), tmp_path)
    assert "averaged models" not in written.html.read_text()


def test_the_command_line_chooses(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the figures, which the other tests draw of the same runs."""
    monkeypatch.setattr("cabafl.reporting.report.render_figures", lambda *_: [])
    words = ["report", str(folders / "averaged"), "--out", str(tmp_path / "report")]
    assert "those of the published models" in _page(*words, "--by", "raw", out=tmp_path)
    assert "those of the averaged models" in _page(*words, out=tmp_path)
    wrong = cabafl_here(*words, "--by", "mean", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "--by = 'mean': accepted: raw, averaged" in wrong.stderr


def _page(*words: str, out: Path) -> str:
    assert cabafl_here(*words, "--quiet", cwd=out).returncode == 0
    return (out / "report" / "report.html").read_text()
