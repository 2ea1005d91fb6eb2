"""The model of a run, ready to be used."""

import sys
from pathlib import Path

import numpy as np
import pytest

from cabafl import UserError, load_experiment, load_model, simulate
from cabafl.lifecycle.simulate import resume
from cabafl.lifecycle.stopping import Paused
from cabafl.recording.folder import read_metrics
from cabafl.samples import load_data
from tests.cli.program import cabafl
from tests.runs import settings

pytestmark = pytest.mark.usefixtures("no_pixels")


def accuracy(folder: Path, which: str = "result") -> float:
    """Of the loaded model on the test samples as they are stored."""
    test = load_data(load_experiment(folder / "experiment.toml")).test
    predicted = load_model(folder, which).predict(test.x.numpy())  # type: ignore[arg-type]
    return float((predicted == test.y.numpy()).mean())


def run(folder: Path, *more: str) -> Path:
    simulate(load_experiment(None, settings("fedavg", "run.workers=0", *more)), folder)
    return folder


def test_a_finished_model_has_the_recorded_accuracy(tmp_path: Path) -> None:
    folder = run(tmp_path / "run")
    assert accuracy(folder) == read_metrics(folder)[-1].value
    model = load_model(folder)
    assert not model.network.training
    assert model.spec.input_shape == (32,)


def test_raw_and_best_models_are_loaded_by_name(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "run.average=polynomial", "run.keep=both")
    rows = read_metrics(folder)
    assert accuracy(folder) == rows[-1].averaged_value
    assert accuracy(folder, "raw") == rows[-1].value
    assert accuracy(folder, "best") == max(row.averaged_value or 0 for row in rows)
    only_best = run(tmp_path / "best", "run.keep=best")
    assert accuracy(only_best, "best") == accuracy(only_best) == max(row.value for row in read_metrics(only_best))


def test_a_run_that_is_not_finished_gives_the_model_of_its_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Paused):
        simulate(load_experiment(None, settings("cabafl", "run.workers=0", "run.keep=both")), folder, until=40)
    assert accuracy(folder) == read_metrics(folder)[-1].value
    assert accuracy(folder, "best") == max(row.value for row in read_metrics(folder))
    resume(folder)
    assert accuracy(folder) == read_metrics(folder)[-1].value


def test_one_sample_or_several(tmp_path: Path) -> None:
    model = load_model(run(tmp_path / "run"))
    x = np.zeros((3, 32), dtype=np.float32)
    assert model(x).shape == (3, 10)
    assert model.predict(x[0]).shape == (1,)
    with pytest.raises(UserError, match=r"^x: shape \(3, 31\); accepted: \(32,\), or n x \(32,\) for n samples"):
        model(x[:, 1:])


def test_the_names_of_classes_come_back(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    x = draw.random((200, 4), dtype=np.float32)
    labels = np.where(x[:, 0] > 0.5, "large", "small")
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=labels, x_test=x[:50], y_test=labels[:50])
    data = ["data.dataset=npz", f"data.root={tmp_path / 'mine.npz'}", "data.partition=iid", "data.devices=4"]
    more = ["model.name=mlp", "method.name=fedavg", "run.virtual_time=60", "run.workers=0", "fleet.slots=2"]
    simulate(load_experiment(None, [*data, *more]), tmp_path / "run")
    (tmp_path / "mine.npz").unlink()  # the model needs nothing of it
    predicted = load_model(tmp_path / "run").predict(x[:50])
    assert set(predicted) <= {"large", "small"}
    assert (predicted == labels[:50]).mean() == read_metrics(tmp_path / "run")[-1].value


def test_a_run_that_keeps_only_the_best_model(tmp_path: Path) -> None:
    only_best = run(tmp_path / "best", "run.keep=best")
    with pytest.raises(
        UserError, match=r"^which = 'raw': run.keep = best, so that .* has no other model; accepted: resu"
    ):
        load_model(only_best, "raw")
    with pytest.raises(Paused):
        simulate(
            load_experiment(None, settings("fedavg", "run.workers=0", "run.keep=best")), tmp_path / "run", until=30
        )
    rows = read_metrics(tmp_path / "run")
    assert len({row.value for row in rows}) > 1
    assert accuracy(tmp_path / "run") == accuracy(tmp_path / "run", "best") == max(row.value for row in rows)
    assert load_model(tmp_path / "run", "raw").spec == load_model(tmp_path / "run").spec


def test_a_network_of_the_folder_in_which_the_run_was_started(tmp_path: Path) -> None:
    (tmp_path / "net_of_the_run.py").write_text("from torch import nn\ndef net():\n    return nn.Linear(32, 10)\n")
    words = settings("fedavg", "run.workers=0", "model.name=net_of_the_run:net", "run.virtual_time=10")
    done = cabafl("run", *words, "--out", "run", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before = list(sys.path)
    try:
        assert load_model(tmp_path / "run").predict(np.zeros((2, 32), dtype=np.float32)).shape == (2,)
    finally:
        sys.path[:] = before
        del sys.modules["net_of_the_run"]


@pytest.mark.parametrize("x", ["text", None, {"x": 1}, [[1.0], [1.0, 2.0]], object(), [["a"] * 32]])
def test_samples_of_another_type(x: object, tmp_path: Path) -> None:
    model = load_model(run(tmp_path / "run", "run.virtual_time=10"))
    with pytest.raises(UserError, match=r"^x: "):
        model.predict(x)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("broken", "which", "message"),
    [
        ("", "worst", "which = 'worst': accepted: result, raw, best"),
        ("", "best", r"model-best.safetensors: cannot be read: .*; accepted: a run with run.keep = best or both"),
        ("experiment.toml", "result", r"not a run folder \(it has no experiment.toml\)"),
        ("model.safetensors", "result", r"model.safetensors: cannot be read: "),
        ("summary.json", "result", r"has no model yet; accepted: a finished run, or one with a checkpoint"),
    ],
)
def test_what_cannot_be_loaded(broken: str, which: str, message: str, tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "run.keep_state=false", "run.virtual_time=10")
    if broken:
        (folder / broken).unlink()
    with pytest.raises(UserError, match=message):
        load_model(folder, which)  # type: ignore[arg-type]


def test_a_damaged_description_is_one_line(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", "run.virtual_time=10")
    (folder / "task.json").write_text("{}")
    with pytest.raises(UserError, match=r"task.json: cannot be read: seed field required; accepted: what") as refused:
        load_model(folder)
    assert "\n" not in str(refused.value)
    (folder / "task.json").unlink()  # older versions did not write it
    assert load_model(folder).spec.classes == 10
