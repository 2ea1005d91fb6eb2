"""The columns of metrics.csv that a page can draw."""

from pathlib import Path

import numpy as np

from cabafl.config import load_experiment
from cabafl.lifecycle.simulate import simulate
from cabafl.watch.evaluations import Evaluations
from cabafl.watch.places import Place


def test_what_each_device_gets_and_further_metrics_are_columns(tmp_path: Path) -> None:
    words = ["data.dataset=synthetic", "data.devices=6", "model.name=mlp", "task.name=regression", "fleet.slots=2"]
    words += ["data.partition=natural", "run.virtual_time=20", "run.workers=0", "run.evaluate_devices=4"]
    result = simulate(load_experiment(None, words), tmp_path / "run")
    followed = Evaluations(Place(tmp_path, ("run",)))
    assert followed.follow(None)
    assert followed.metric == "mse"
    shown = followed.columns(0, 100, followed.wall(None)[0])
    np.testing.assert_array_equal(shown["value"], result.metrics["mse"])
    for name in ("devices_mean", "devices_deviation", "devices_worst_decile", "devices_jain", "mae", "r2"):
        np.testing.assert_array_equal(shown[name], result.metrics[name])
