"""`compare`, `sweep` and results from Python."""

from pathlib import Path
from typing import Any

import pytest

from cabafl import UserError, compare, load_experiment, simulate, sweep

BASE = ["data.dataset=synthetic", "data.devices=6", "model.name=mlp", "fleet.slots=2", "run.virtual_time=40"]


@pytest.mark.slow
def test_compare_runs_methods_and_reports(tmp_path: Path) -> None:
    experiment = load_experiment(None, [*BASE, "run.evaluate_every=2"])
    for method in ("fedavg", "fedasync"):  # finished before: the runs of the first seed are those that are carried out
        settings = [*BASE, "run.evaluate_every=2", "run.workers=0", "seed=2", f"method.name={method}"]
        simulate(load_experiment(None, settings), tmp_path / "c" / "runs" / f"{method}-seed2")
    polls: list[int] = []
    found = compare(
        experiment, ["fedavg", "fedasync"], seeds=2, out=tmp_path / "c", poll=lambda runs: polls.append(len(runs))
    )
    assert [(run.label, run.seed) for run in found.runs] == [
        ("fedavg", 1),
        ("fedasync", 1),
        ("fedavg", 2),
        ("fedasync", 2),
    ]
    assert found.report.html.exists()
    assert found.failures == {}
    assert all((run.folder / "summary.json").exists() for run in found.runs)
    assert set(polls) == {4}
    assert list(found.summary["label"]) == ["fedavg", "fedasync", "fedavg", "fedasync"]
    assert "<table" in found._repr_html_()
    alone = simulate(load_experiment(None, [*BASE, "run.evaluate_every=2", "run.workers=0", "method.name=fedavg"]))
    assert found.summary["final_accuracy"][0] == alone.summary["final_accuracy"]
    again = compare(experiment, "fedavg,fedasync", seeds=2, out=tmp_path / "c")
    assert len(again.runs) == 4


@pytest.mark.slow
def test_sweep_varies_keys(tmp_path: Path) -> None:
    experiment = load_experiment(None, [*BASE, "method.name=fedavg"])
    found = sweep(experiment, {"training.epochs": [1, 2]}, out=tmp_path / "s")
    assert sorted(run.experiment.training.epochs for run in found.runs) == [1, 2]
    assert found.report.html.exists()


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"training.epochs": [1]}, "sweep: no key has several values"),
        ({"training.epoch": [1, 2]}, "training.epoch"),
        ({"training.epochs": [1, "two"]}, "training.epochs"),
    ],
)
def test_wrong_sweeps_are_refused(grid: dict[str, list[object]], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        sweep(load_experiment(None, BASE), grid, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_wrong_comparisons_are_refused(tmp_path: Path) -> None:
    experiment = load_experiment(None, BASE)
    with pytest.raises(UserError, match=r"--methods = 'fedavgg'"):
        compare(experiment, ["fedavgg"], out=tmp_path / "c")
    with pytest.raises(UserError, match=r"run.stop_at = 90: accuracy is a share"):
        compare(load_experiment(None, [*BASE, "run.stop_at=90"]), ["fedavg"], out=tmp_path / "c")
    with pytest.raises(UserError, match="seeds = 0: accepted: a whole number from 1"):
        compare(experiment, seeds=0, out=tmp_path / "c")
    with pytest.raises(UserError, match="jobs = 0: accepted: a whole number from 1"):
        compare(experiment, ["fedavg"], jobs=0, out=tmp_path / "c")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": 3}, "methods = 3: accepted: names of methods"),
        ({"methods": [3]}, r"methods = \[3\]: accepted: names of methods"),
        ({"methods": []}, r"methods = \[\]: accepted: names of methods"),
        ({"seeds": "3"}, "seeds = '3': accepted: a whole number from 1"),
        ({"seeds": 1.5}, "seeds = 1.5: accepted: a whole number from 1"),
        ({"jobs": "two"}, "jobs = 'two': accepted: a whole number from 1"),
        ({"targets": 40}, r"targets = 40: accepted: a list of numbers, e.g. \[40, 45\], or None"),
        ({"targets": "40"}, "targets = '40': accepted: a list of numbers"),
        ({"targets": [float("nan")]}, r"targets = \[nan\]: accepted: percentages, above 0, at most 100"),
        ({"targets": [40, 9000]}, r"targets = \[40, 9000\]: accepted: percentages, above 0, at most 100"),
        ({"out": 7}, "out = 7: accepted: the path of a folder"),
        ({"experiment": {"seed": 1}}, "experiment = {'seed': 1}: accepted: what load_experiment returns"),
    ],
)
def test_comparisons_with_arguments_of_another_type(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    usual: dict[str, Any] = {"experiment": load_experiment(None, BASE), "methods": ["fedavg"], "out": tmp_path / "c"}
    with pytest.raises(UserError, match=f"^{message}"):
        compare(**(usual | arguments))
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ([("method.k", [1])], "grid = .*: accepted: section.key -> a list of values"),
        ({"method.k": 5}, r"grid: method.k = 5: accepted: a list of values, e.g. \[5, 10\]"),
        ({"method.k": "5,10"}, "grid: method.k = '5,10': accepted: a list of values"),
        ({"method.k": []}, r"grid: method.k = \[\]: accepted: a list of values"),
        ({5: [5]}, "grid: 5 = .*: accepted: a list of values"),
        ({"run.stop_at": [0.9, 90]}, "run.stop_at = 90: accuracy is a share"),
        ({"method.k": [object()]}, "grid: <object .*>: accepted: numbers"),
    ],
)
def test_sweeps_with_arguments_of_another_type(grid: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        sweep(load_experiment(None, BASE), grid, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_result_shows_itself(tmp_path: Path) -> None:
    result = simulate(load_experiment(None, [*BASE, "run.workers=0", "method.name=fedavg"]), tmp_path / "run")
    text = repr(result)
    assert text.startswith("<Result fedavg, seed 1: accuracy ")
    assert text.endswith(f"{tmp_path / 'run'}>")
    assert "\n" not in text
    assert result.plot().axes[0].get_xlabel() == "virtual time [s]"
    assert "data:image/png;base64," in result._repr_html_()
