"""Reports on runs whose metric is not finite, or that ended at different times; variants of one method."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cabafl.recording.metrics import best_window_mean
from cabafl.recording.scale import ACCURACY, MetricInfo
from cabafl.reporting.curve import draw_curve
from cabafl.reporting.html import _digits
from cabafl.reporting.measures import default_targets, measure
from cabafl.reporting.report import _caveats, build_report
from cabafl.reporting.runs import by_label, load_runs
from cabafl.reporting.series import Series, moving_mean
from cabafl.reporting.styles import COLOURS, KNOWN, styles
from cabafl.reporting.table import Table, tables
from tests.reporting.sample_runs import evaluations, write_run

MSE = MetricInfo("mse", more_is_better=False)
GOOD = np.linspace(0.1, 0.6, 21).tolist()
ODD = {
    "never a number": [math.nan] * 21,
    "grows without bound": [*GOOD[:12], 1e200, 1e300, *[math.inf] * 7],
    "lost": [*GOOD[:12], *[math.nan] * 9],
    "not at the start": [-math.inf, math.nan, *GOOD[2:]],
}


NOTE = "Some values are not finite (NaN or infinite); curves leave them out"


def marked(tables: Sequence[Table]) -> list[str]:
    """The methods that are marked as the best of a column."""
    return [row[0].text for table in tables for row in table.rows if row[1:] and row[2].best]


def curves(page: Path) -> list[dict[str, dict[str, list[float]]]]:
    """Of the page; strict JSON, as a browser reads it."""

    def refuse(constant: str) -> float:
        raise ValueError(constant)

    text = page.read_text(encoding="utf-8").split('id="data">')[1].partition("</script>")[0]
    found: list[dict[str, dict[str, list[float]]]] = json.loads(text, parse_constant=refuse)["methods"]
    return found


@pytest.mark.filterwarnings("error:.*(invalid value|overflow|Axis)")
@pytest.mark.parametrize("metric", [ACCURACY, MSE])
def test_a_report_on_values_that_are_not_finite(metric: MetricInfo, tmp_path: Path) -> None:
    methods = dict(zip(ODD, ("fedavg", "fedasync", "fedbuff", "safa"), strict=True))
    for kind, method in methods.items():
        write_run(tmp_path / "runs" / method, method, accuracy=ODD[kind], metric=metric)
        draw_curve(evaluations(ODD[kind], metric=metric), "odd", tmp_path / "curve.png")
    write_run(tmp_path / "runs/cabafl", "cabafl", accuracy=GOOD, metric=metric)
    report = build_report(load_runs(tmp_path / "runs"), tmp_path / "report")
    drawn = {str(curve["label"]): len(curve["time"]["x"]) for curve in curves(report.html)}
    assert drawn["cabafl"] == 21
    assert (drawn[methods["never a number"]], drawn[methods["lost"]]) == (0, 12)
    assert all(drawn[method] < 21 for method in methods.values())
    assert NOTE in report.html.read_text()
    assert "cabafl" in marked(report.tables)


@pytest.mark.filterwarnings("error:.*(invalid value|overflow|Axis)")
@pytest.mark.parametrize("metric", [ACCURACY, MSE])
@pytest.mark.parametrize("kind", ODD)
def test_one_run_with_values_that_are_not_finite(kind: str, metric: MetricInfo, tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a", "fedavg", accuracy=ODD[kind], metric=metric)
    write_run(tmp_path / "runs/b", "cabafl", accuracy=GOOD, metric=metric)
    runs = load_runs(tmp_path / "runs")
    measures = measure(runs)
    assert any(NOTE in note for note in _caveats(runs, measures, None))
    assert "cabafl" in marked(tables(measures))


def test_a_seed_that_has_diverged_is_not_left_out_of_the_mean(tmp_path: Path) -> None:
    for seed, values in enumerate((GOOD, [*GOOD[:20], math.nan])):
        write_run(tmp_path / f"runs/{seed}", "fedavg", seed, accuracy=values)
    assert '"final_accuracy": null' in (tmp_path / "runs/1/summary.json").read_text()
    (row,) = measure(load_runs(tmp_path / "runs")).rows
    assert math.isnan(row.values["final_accuracy"] or 0.0)


def test_only_values_that_are_not_finite(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a", accuracy=[math.nan] * 21, metric=MSE)
    runs = load_runs(tmp_path / "runs")
    assert default_targets(by_label(runs)) == []
    assert build_report(runs, tmp_path / "report").html.exists()


def test_nan_is_in_no_best_window_and_spoils_only_its_windows() -> None:
    values = [*GOOD, math.nan, *GOOD]
    assert best_window_mean(values, 10) == best_window_mean(GOOD, 10)
    assert best_window_mean(values, 10, more_is_better=False) == best_window_mean(GOOD, 10, more_is_better=False)
    means = moving_mean(np.array(values), 10)
    assert np.flatnonzero(np.isnan(means)).tolist() == list(range(21, 31))
    np.testing.assert_allclose(means[:21], moving_mean(np.array(GOOD), 10))
    assert MSE.best([math.nan, 2.0, 1.0]) == 1.0
    assert math.isnan(ACCURACY.best([math.nan]))


def test_close_values_keep_the_digits_that_differ() -> None:
    def curve(values: list[float]) -> Series:
        column = np.array(values)
        return Series(column, column, column, column, 1)

    assert _digits([curve([11.98, 11.99])]) == 8
    assert _digits([curve([10.0, 60.0]), curve([20.0])]) == 5
    assert _digits([curve([3.0, 3.0])]) == _digits([curve([])]) == 5


def test_short_names_of_metrics_are_written_large() -> None:
    assert [MSE.heading, ACCURACY.heading, MetricInfo("macro_f1").heading] == ["MSE", "Accuracy", "Macro f1"]


def test_runs_that_were_finished_by_hand_are_not_averaged_with_whole_ones(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / f"runs/{seed}", seed=seed)
    write_run(tmp_path / "runs/0", seed=1, accuracy=GOOD[:12])  # found first
    for name, reason in (("0", "finish"), ("2", "stop_at")):
        path = tmp_path / f"runs/{name}/summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"ended_by": reason}))
    left_out: list[str] = []
    runs = load_runs(tmp_path / "runs", warn=left_out.append)
    assert sorted((run.label, run.seed) for run in runs) == [
        ("fedavg", 1),
        ("fedavg", 2),
        ("fedavg (seed 1, ended by hand: 110 s)", 1),
    ]
    assert left_out == []
    text = build_report(runs, tmp_path / "report").html.read_text()
    assert (
        "Runs that ended before their time, so that lengths differ: fedavg (seed 1, ended by hand: 110 s), seed" in text
    )
    assert "fedavg, seed 2, at 200 s (stop_at)." in text


def test_variants_of_one_method_have_colours_of_their_own_and_a_natural_order(tmp_path: Path) -> None:
    for k in (20, 5, 10):
        write_run(tmp_path / f"k{k}", "cabafl", settings=f"k = {k}")
    write_run(tmp_path / "avg", "fedavg")
    labels = list(by_label(load_runs(tmp_path)))
    assert labels == ["cabafl (k = 5)", "cabafl (k = 10)", "cabafl (k = 20)", "fedavg"]
    found = styles(labels)
    assert found["cabafl (k = 5)"] == KNOWN["cabafl"]
    assert found["fedavg"] == KNOWN["fedavg"]
    assert len({style.colour for style in found.values()}) == 4
    assert len({style[1:] for style in found.values()}) == 4
    assert len({style.colour for style in styles([f"cabafl (k = {k})" for k in range(11)]).values()}) == len(COLOURS)
    assert len(styles([f"cabafl (k = {k})" for k in range(60)])) == 60
