"""`cabafl report`, and the reports that other commands write."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cabafl.cli.report import parse_targets, report, write_report
from cabafl.errors import UserError
from cabafl.recording.scale import MetricInfo
from tests.reporting.sample_runs import write_run


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the figures, which take most of the time of a report."""
    monkeypatch.setattr("cabafl.reporting.report.render_figures", lambda runs, line_styles: [])


def command(*words: str) -> tuple[int, str, BaseException | None]:
    app = typer.Typer()
    app.command()(report)
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output, result.exception


@pytest.mark.usefixtures("no_figures")
def test_command_prints_tables_and_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs/a")
    write_run(tmp_path / "runs/b", finished=False, seed=2)
    code, output, _ = command("runs", "--targets", "40,45")
    assert code == 0
    assert "To reach 45 % accuracy" in output
    assert "Report: report/report.html" in output
    assert "runs/b: not finished" in (tmp_path / "report/report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_figures")
def test_unfinished_runs_are_included_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs/a")
    write_run(tmp_path / "runs/b", "cabafl", finished=False)
    assert "unfinished" not in command("runs", "--out", "without")[1]
    code, output, _ = command("runs", "--unfinished", "--out", "with")
    assert code == 0
    assert "cabafl (seed 1, unfinished: " in output


@pytest.mark.usefixtures("no_figures")
def test_labelled_folders_make_a_quiet_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run")
    write_report({folder: "mine"}, tmp_path / "out", None, quiet=True, notes=["one run failed"])
    assert capsys.readouterr().out == ""
    assert (tmp_path / "out/table.csv").read_text().splitlines()[1].startswith("mine,")
    assert "one run failed" in (tmp_path / "out/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["", "x", "40,,45", "0", "101", "nan"])
def test_wrong_targets_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--targets"):
        parse_targets(text)


def test_valid_targets_are_parsed() -> None:
    assert parse_targets("40, 45.5") == [40, 45.5]
    assert parse_targets("0.5,-2", MetricInfo("r2")) == [0.5, -2]
    with pytest.raises(UserError, match="--targets = 'x': accepted: values of r2 separated by commas"):
        parse_targets("x", MetricInfo("r2"))
    assert parse_targets(None) is None


@pytest.mark.parametrize(
    ("text", "metric", "accepted"),
    [
        ("90", MetricInfo("r2"), "values of r2 separated by commas, at most 1, e.g. 0.5,0.2"),
        ("5,-1", MetricInfo("mse", more_is_better=False), "values of mse separated by commas, at least 0"),
        (
            "0.5",
            MetricInfo("perplexity", more_is_better=False),
            "values of perplexity separated by commas, at least 1, e.g. 40,30",
        ),
        ("inf", MetricInfo("own"), "values of own separated by commas"),
        ("40,101", MetricInfo("accuracy", percent=True), "percentages separated by commas"),
    ],
)
def test_targets_that_no_run_can_reach_are_refused(text: str, metric: MetricInfo, accepted: str) -> None:
    with pytest.raises(UserError, match=f"--targets = '{text}': accepted: {accepted}"):
        parse_targets(text, metric)


def test_limits_of_metrics_can_be_reached() -> None:
    assert parse_targets("100", MetricInfo("accuracy", percent=True)) == [100]
    assert parse_targets("1,-5", MetricInfo("r2")) == [1, -5]
    assert parse_targets("0", MetricInfo("mse", more_is_better=False)) == [0]
    assert parse_targets("-7", MetricInfo("mse")) == [-7]  # one of the user's own that turns it around
