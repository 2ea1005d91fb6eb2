"""The examples of the four tasks and of an own task learn; what they write follows the task."""

import csv
import json
from pathlib import Path

import pytest

from cabafl import Result, UserError, load_experiment, simulate
from cabafl.comparison.tuning.metric import parse_metric
from cabafl.recording.folder import read_metrics
from cabafl.recording.scale import MetricInfo
from cabafl.reporting.runs import load_runs

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
INLINE = ["run.workers=0"]


def run(name: str, out: Path, *settings: str) -> Result:
    return simulate(load_experiment(EXAMPLES / f"{name}.toml", [*INLINE, *settings]), out)


def test_classification_learns_and_records_more_metrics(tmp_path: Path) -> None:
    result = run("classification", tmp_path / "run", "run.virtual_time=200")
    assert list(result.metrics.columns[-2:]) == ["macro_f1", "top5"]
    assert result.summary["final_accuracy"] > 0.6 > 0.2 > result.metrics["accuracy"][0]
    assert result.summary["final_top5"] == result.metrics["top5"].iloc[-1] > result.summary["final_accuracy"]


def test_regression_learns_and_less_is_better(tmp_path: Path) -> None:
    result = run("regression", tmp_path / "run", "run.virtual_time=200")
    folder = tmp_path / "run"
    assert result.summary["metric"] == {"name": "mse", "more_is_better": False, "percent": False}
    assert result.summary["final_r2"] > 0.8
    assert result.summary["best_mse"] == result.metrics["mse"].min()
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:4] == ["time", "version", "mse", "loss"]
    assert list(rows[0])[-2:] == ["mae", "r2"]
    evaluations = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines() if "mse" in line]
    assert [event["mse"] for event in evaluations] == [float(row["mse"]) for row in rows]
    assert "accuracy" not in (folder / "events.jsonl").read_text()
    [loaded] = load_runs(folder)
    assert loaded.metrics == read_metrics(folder)
    assert loaded.summary["best_window_mean"] == result.summary["best_window_mean"]


def test_multilabel_learns(tmp_path: Path) -> None:
    result = run("multilabel", tmp_path / "run", "run.virtual_time=200")
    assert result.summary["final_micro_f1"] > 0.85 > 0.6 > result.metrics["micro_f1"][0]


def test_next_token_learns(tmp_path: Path) -> None:
    few = ["data.devices=10", "fleet.slots=4", "data.test_limit=200"]
    result = run("next_token", tmp_path / "run", "run.virtual_time=210", *few)
    assert result.metrics["perplexity"][0] > 11.5
    assert result.summary["final_perplexity"] < 9


def test_a_task_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    result = run("regression", tmp_path / "run", "task.name=my_task:Range", "run.virtual_time=100")
    assert result.summary["final_pinball"] < 0.5 * result.metrics["pinball"][0]
    assert result.model(result.model.fc1.weight.new_zeros(3, 8)).shape == (3, 2)  # type: ignore[operator, union-attr]
    [loaded] = load_runs(tmp_path / "run")
    assert loaded.metric == (("pinball", False, False))


def test_worker_processes_and_averages_give_the_same_metrics(tmp_path: Path) -> None:
    short = ["run.virtual_time=60", "run.average=polynomial"]
    one = run("regression", tmp_path / "one", *short)
    two = simulate(load_experiment(EXAMPLES / "regression.toml", ["run.workers=2", *short]), tmp_path / "two")
    for name in ("events.jsonl", "metrics.csv", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert list(one.metrics.columns[-6:]) == [
        "averaged_mse",
        "averaged_loss",
        "mae",
        "r2",
        "averaged_mae",
        "averaged_r2",
    ]
    assert two.summary["averaged"]["best_mse"] == one.metrics["averaged_mse"].min()
    assert one.summary["final_averaged_r2"] == one.metrics["averaged_r2"].iloc[-1]


@pytest.mark.parametrize("features", ["activations", "activation_counts"])
def test_features_and_screening_work_without_classes(features: str) -> None:
    settings = [*INLINE, "run.virtual_time=80", "method.k=4", "method.m=2", f"method.features={features}"]
    kinds: list[str] = []
    experiment = load_experiment(EXAMPLES / "multilabel.toml", settings)
    simulate(experiment, listener=lambda event: kinds.append(getattr(event, "kind", "")))
    assert {"cache", "select"} <= set(kinds)


def test_a_search_follows_the_direction_of_the_metric(tmp_path: Path) -> None:
    run("regression", tmp_path / "run", "run.virtual_time=100")
    rows = read_metrics(tmp_path / "run")
    metric = parse_metric(None, rows[0].metric)
    assert (metric.name, metric.lower_is_better) == ("mse", True)
    assert metric.score([rows], whole=True) < rows[0].value
    reachable, impossible = (
        parse_metric("time_to_0.25", rows[0].metric),
        parse_metric("time_to_0.000001", rows[0].metric),
    )
    assert reachable.score([rows], whole=True) <= 100
    assert not impossible.reached(impossible.score([rows], whole=True))
    assert impossible.score([rows], True) < impossible.score([rows[:1]], True)  # the better error is the better trial


def test_a_metric_of_another_task_is_refused() -> None:
    mse = MetricInfo("mse", more_is_better=False)
    with pytest.raises(
        UserError, match=r"--metric = 'accuracy': accepted: mse, or time_to_0.5, .* with any value of mse"
    ):
        parse_metric("accuracy", mse)


def test_runs_can_be_judged_by_another_metric_of_the_task(tmp_path: Path) -> None:
    result = run(
        "classification", tmp_path / "run", "run.virtual_time=100", "task.metric=macro_f1", "task.metrics=top5"
    )
    assert list(result.metrics.columns[2:4]) == ["macro_f1", "loss"]
    assert result.metrics.columns[-1] == "top5"
    assert result.summary["best_macro_f1"] == result.metrics["macro_f1"].max()
    [loaded] = load_runs(tmp_path / "run")
    assert loaded.metric == MetricInfo("macro_f1", percent=True)
