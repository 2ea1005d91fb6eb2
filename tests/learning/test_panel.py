"""Devices that are evaluated on their own samples: which, on what, and what is recorded."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cabafl.assembly import assemble, assemble_server
from cabafl.config import Experiment, load_experiment
from cabafl.data.dataset import Dataset, Partition, Split
from cabafl.errors import UserError
from cabafl.learning.panel import choose_panel
from cabafl.lifecycle.simulate import resume, simulate
from cabafl.lifecycle.stopping import Paused
from cabafl.recording.metrics import over_devices
from cabafl.recording.scale import ACCURACY, MetricInfo
from cabafl.reporting.report import build_report
from cabafl.reporting.runs import load_runs
from cabafl.samples import make_data

QUICK = ["data.dataset=synthetic", "data.devices=12", "fleet.slots=3", "model.name=mlp", "run.virtual_time=40"]
QUICK += ["method.name=fedavg", "run.workers=0", "run.evaluate_every=10", "training.learning_rate=0.1"]


def own_users(folder: Path) -> Experiment:
    """Four users with 5 training samples each; test samples only of users 0, 1 and 3."""
    draw = np.random.default_rng(2)
    np.savez(
        folder / "mine.npz",
        x_train=draw.random((20, 3), dtype=np.float32),
        y_train=np.arange(20) % 2,
        user_train=np.repeat(np.arange(4), 5),
        x_test=draw.random((9, 3), dtype=np.float32),
        y_test=np.arange(9) % 2,
        user_test=np.array([0, 3, 1, 0, 3, 1, 0, 3, 3]),
    )
    keys = ["data.dataset=npz", f"data.root={folder / 'mine.npz'}", "data.partition=natural", "data.min_samples=1"]
    return load_experiment(None, [*keys, "model.name=mlp", "fleet.slots=2", "run.evaluate_devices=3"])


def test_devices_are_evaluated_on_their_training_samples() -> None:
    parts = assemble(load_experiment(None, [*QUICK, "run.evaluate_devices=5"]))
    panel, partition = parts.task.panel, parts.task.partition
    assert panel is not None
    assert not panel.of_test
    assert len(set(panel.devices.tolist())) == 5
    for place, device in enumerate(panel.devices.tolist()):
        np.testing.assert_array_equal(panel.samples.device(place), partition.device(device))
    other = assemble(load_experiment(None, [*QUICK, "run.evaluate_devices=5", "seed=2"])).task.panel
    assert other is not None
    assert other.devices.tolist() != panel.devices.tolist()


def test_devices_are_evaluated_on_the_test_samples_of_their_user(tmp_path: Path) -> None:
    panel = assemble(own_users(tmp_path)).task.panel
    assert panel is not None
    assert panel.of_test
    assert panel.devices.tolist() == [0, 1, 3]
    assert [panel.samples.device(place).tolist() for place in range(3)] == [[0, 3, 6], [2, 5], [1, 4, 7, 8]]


def test_a_server_has_test_samples_only(tmp_path: Path) -> None:
    panel = assemble_server(own_users(tmp_path), 4).task.panel
    assert panel is not None
    assert panel.devices.tolist() == [0, 1, 3]
    with pytest.raises(
        UserError, match=r"run\.evaluate_devices = 5: the training samples are on the devices; accepted"
    ):
        assemble_server(load_experiment(None, [*QUICK, "run.evaluate_devices=5"]), 12)


def test_users_without_test_samples_use_their_training_samples() -> None:
    users = torch.tensor([0, 0, 1, 1])
    train = Split(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), users)
    test = Split(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64), torch.tensor([7, 8]))
    dataset = Dataset("mine", "vector", train, test, 2)
    partition = Partition(np.arange(4), np.array([0, 2, 4]))
    panel = choose_panel(dataset, partition, 2, 1, natural=True)
    assert (panel.of_test, panel.samples.indices.tolist()) == (False, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("values", "metric", "worst", "jain"),
    [
        ([0.5] * 20, ACCURACY, 0.5, 1.0),
        ([1.0] + [0.0] * 9, ACCURACY, 0.0, 0.1),
        (np.linspace(0, 1, 11).tolist(), ACCURACY, 0.05, 5.5**2 / (11 * 3.85)),
        ([1.0, 2.0, 3.0], MetricInfo("mse", more_is_better=False), 3.0, 36 / (3 * 14)),
        ([0.0, 0.0], ACCURACY, 0.0, 1.0),
    ],
)
def test_the_distribution(values: list[float], metric: MetricInfo, worst: float, jain: float) -> None:
    found = over_devices(values, metric)
    assert found["devices_mean"] == pytest.approx(np.mean(values))
    assert found["devices_deviation"] == pytest.approx(np.std(values))
    assert found["devices_worst_decile"] == pytest.approx(worst)
    assert found["devices_jain"] == pytest.approx(jain)


def test_a_run_records_what_each_device_gets(tmp_path: Path) -> None:
    keys = [*QUICK, "run.evaluate_devices=8", "run.average=polynomial"]
    result = simulate(load_experiment(None, keys), tmp_path / "run")
    columns = ["devices_mean", "devices_deviation", "devices_worst_decile", "devices_jain"]
    assert list(result.metrics.columns[-4:]) == columns
    values = result.summary["devices"]["values"]
    assert over_devices(values, ACCURACY) == {name: result.metrics[name].iloc[-1] for name in columns}
    assert result.summary["final_devices_mean"] == np.mean(values)
    assert result.summary["devices"]["samples"] == "training"
    # one device by hand: the last published model on its training samples
    experiment = load_experiment(None, keys)
    dataset, partition = make_data(experiment)
    index = torch.from_numpy(partition.device(result.summary["devices"]["numbers"][3]))
    plain = simulate(load_experiment(None, QUICK))
    answers = plain.model(dataset.inputs(dataset.train.x[index])).argmax(1)
    assert values[3] == float((answers == dataset.train.y[index]).double().mean())
    assert plain.metrics["accuracy"].tolist() == result.metrics["accuracy"].tolist()  # nothing else changes


def test_workers_and_resuming_give_the_same_bytes(tmp_path: Path) -> None:
    keys = [*QUICK, "run.evaluate_devices=8", "run.evaluate_every=7"]
    whole = simulate(load_experiment(None, [*keys, "run.workers=1"]), tmp_path / "whole")
    with pytest.raises(Paused):
        simulate(load_experiment(None, keys), tmp_path / "parts", until=21)
    parts = resume(tmp_path / "parts")
    assert parts is not None
    for name in ("events.jsonl", "metrics.csv", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    assert parts.summary["devices"] == whole.summary["devices"]


def test_reports_show_the_distribution(tmp_path: Path) -> None:
    for method in ("fedavg", "fedasync"):
        keys = [*QUICK, f"method.name={method}", "run.evaluate_devices=8"]
        simulate(load_experiment(None, keys), tmp_path / "runs" / method)
    written = build_report(load_runs(tmp_path / "runs"), tmp_path / "report")
    table = next(table for table in written.tables if table.title == "What each device gets")
    assert table.headings == ["method", "mean [%]", "deviation [%]", "worst decile [%]", "Jain index"]
    summary = json.loads((tmp_path / "runs/fedavg/summary.json").read_text())
    assert table.rows[0][1].text == f"{100 * summary['final_devices_mean']:.2f}"
    assert (tmp_path / "report/figures/devices.png").stat().st_size > 5000
    assert "What each device gets" in written.html.read_text()
