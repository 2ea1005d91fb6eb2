"""Reports on runs of other tasks: their metric, in its direction and unit, everywhere."""

import json
from pathlib import Path

import numpy as np
import pytest

from cabafl.cli.progress import Progress
from cabafl.cli.run import summary_table
from cabafl.config import load_experiment
from cabafl.errors import UserError
from cabafl.recording.events import Evaluated
from cabafl.recording.folder import read_metrics
from cabafl.recording.scale import ACCURACY, MetricInfo, metric_info
from cabafl.reporting.curve import draw_curve
from cabafl.reporting.measures import measure
from cabafl.reporting.report import build_report
from cabafl.reporting.runs import Run, load_runs
from cabafl.reporting.table import Table, tables
from tests.reporting.sample_runs import evaluations, write_run

MSE = MetricInfo("mse", more_is_better=False)
F1 = MetricInfo("micro_f1", percent=True)


def errors(folder: Path) -> list[Run]:
    """cabafl falls from 2 to 0.232, fedavg to 0.532; the best mean of ten is that of the last ten."""
    write_run(folder / "a", "cabafl", accuracy=np.linspace(2.0, 0.232, 21).tolist(), metric=MSE)
    write_run(folder / "b", "fedavg", accuracy=np.linspace(2.0, 0.532, 21).tolist(), metric=MSE)
    return load_runs([folder])


def cells(table: Table, method: str) -> dict[str, tuple[str, bool]]:
    row = next(row for row in table.rows if row[0].text == method)
    return {heading: (cell.text, cell.best) for heading, cell in zip(table.headings, row, strict=True)}


def test_a_target_that_no_run_can_reach_is_refused(tmp_path: Path) -> None:
    errors(tmp_path / "runs")
    with pytest.raises(UserError, match=r"targets = \[0.6, -1\]: accepted: values of mse, at least 0"):
        build_report(load_runs([tmp_path / "runs"]), tmp_path / "report", targets=[0.6, -1])


def test_less_is_better_in_tables_and_targets(tmp_path: Path) -> None:
    runs = errors(tmp_path)
    measures = measure(runs)
    assert measures.targets == [0.24, 0.54]  # what cabafl and fedavg reach, rounded to two digits
    first, _, to_low, to_high = tables(measures)
    assert first.title == "MSE"
    assert cells(first, "cabafl")["at the end"] == ("0.232", True)
    assert cells(first, "cabafl")["mse"][1]
    assert cells(first, "fedavg")["at the end"] == ("0.532", False)
    assert to_low.title == "To reach mse 0.24"
    assert cells(to_low, "fedavg")["time [s]"] == ("NA", False)
    assert cells(to_low, "cabafl")["time [s]"] == ("200", True)
    assert cells(to_high, "fedavg")["time [s]"] == ("200", False)
    assert runs[0].summary["best_window_mean"] == pytest.approx(np.linspace(2.0, 0.232, 21)[-10:].mean())
    assert runs[0].summary["best_mse"] == runs[0].summary["final_mse"] == pytest.approx(0.232)


def test_no_target_is_one_that_the_start_reaches(tmp_path: Path) -> None:
    write_run(tmp_path / "a", accuracy=[0.5, 0.7, 0.9], metric=MSE)
    assert measure(load_runs([tmp_path])).targets == []


def test_files_and_page_have_the_name_of_the_metric(tmp_path: Path) -> None:
    written = build_report(errors(tmp_path / "runs"), tmp_path / "report", targets=[0.6])
    names = {path.name for path in written.files}
    assert {"mse-time.png", "mse-transfers.svg", "mse-joules.png"} <= names
    page = written.html.read_text()
    assert "accuracy" not in page.lower()
    assert "MSE is the best mean of 10 evaluated versions" in page
    assert "both averaged over seeds (lower is better)" in page
    assert '"metric":{"label":"test mse","unit":"","percent":false,"better":-1}' in page
    assert (tmp_path / "report/table.csv").read_text().startswith("method,seeds,best_window_mean")
    assert "final_mse" in (tmp_path / "report/table.csv").read_text()
    assert (tmp_path / "report/speedup.csv").read_text().startswith("target,method,against,speedup\n0.6,")


def test_shares_are_shown_in_percent(tmp_path: Path) -> None:
    write_run(tmp_path / "a", accuracy=np.linspace(0.1, 0.6, 21).tolist(), metric=F1)
    measures = measure(load_runs([tmp_path]))
    assert measures.targets == [55.0, 60.0]
    assert tables(measures)[0].headings[2] == "micro f1 [%]"
    assert tables(measures)[2].title == "To reach 55 % micro f1"


def test_runs_of_different_metrics_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "cabafl", metric=MSE)
    write_run(tmp_path / "b", "fedavg")
    with pytest.raises(UserError, match=r"runs of different metrics \(mse, accuracy\) cannot be compared"):
        build_report(load_runs([tmp_path]), tmp_path / "report")


def test_the_metric_is_read_from_the_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", metric=MSE, finished=False)
    assert {row.metric for row in read_metrics(folder)} == {MSE}
    (folder / "environment.json").unlink()  # as if written by an older version, which knows accuracy only
    with pytest.raises(ValueError, match=r"metrics\.csv: columns time,version,mse,loss,.*accepted: accuracy and loss"):
        read_metrics(folder)


def test_a_damaged_description_of_the_metric_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", metric=MSE)
    (folder / "environment.json").write_text(json.dumps({"metric": {"name": "mse"}}))
    with pytest.raises(UserError, match=r"not a readable run folder: environment.json: metric = \{'name': 'mse'\}"):
        load_runs([folder])
    assert metric_info(None) == ACCURACY
    assert metric_info(MSE.described()) == MSE


@pytest.mark.parametrize(
    ("metric", "value", "target", "reached"),
    [
        (ACCURACY, 0.3999999999, 40, True),
        (ACCURACY, 0.3999, 40, False),
        (MSE, 0.5, 0.5, True),
        (MSE, 0.51, 0.5, False),
        (MetricInfo("r2"), -0.1, -0.2, True),
    ],
)
def test_targets(metric: MetricInfo, value: float, target: float, reached: bool) -> None:
    assert metric.reached(value, target) is reached


def test_the_summary_on_the_terminal(tmp_path: Path) -> None:
    runs = errors(tmp_path)
    rows = dict(zip(*(column.cells for column in summary_table(runs[0].summary).columns), strict=True))
    assert rows["final mse"] == "0.232"
    assert rows["mse, best window of 10 versions"].startswith("0.6298 ± ")
    assert not any("accuracy" in str(name) or "(%)" in str(name) for name in rows)


def test_the_progress_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(load_experiment(None, ["run.virtual_time=10"]), enabled=True) as progress:
        for row in evaluations([0.5, 0.25], metric=MSE):
            progress(row._replace(averaged_value=0.125))
    assert "mse 0.25  (averaged 0.125)" in capsys.readouterr().out
    assert Evaluated(0.0, 0, 0.5, 1.0, 0, 0, 0, 0, 0, 0.0).columns[2] == "accuracy"


@pytest.mark.parametrize("metric", [MSE, F1])
def test_the_curve_of_a_run(metric: MetricInfo, tmp_path: Path) -> None:
    rows = evaluations(np.linspace(0.9, 0.1, 21).tolist(), metric=metric)
    draw_curve([row._replace(averaged_value=0.3) for row in rows], "a run", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 5000
