"""A run goes on with the same data and modules, wherever the process is started."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cabafl import UserError, load_experiment, simulate
from cabafl.lifecycle.finishing import finish
from cabafl.lifecycle.origin import with_absolute_paths
from cabafl.lifecycle.simulate import resume
from cabafl.lifecycle.stopping import Paused
from tests.runs import same_bytes

pytestmark = pytest.mark.usefixtures("no_pixels")

MODULE = """
from torch import nn

def net(input_shape, classes):
    return nn.Linear(input_shape[0], classes)
"""
SETTINGS = ["data.dataset=npz", "data.root=mine.npz", "data.partition=iid", "data.devices=4", "fleet.slots=2"]
MORE = ["method.name=fedavg", "run.virtual_time=60", "run.workers=0"]


def write_data(path: Path, seed: int = 1) -> None:
    x = np.random.default_rng(seed).random((100, 4), dtype=np.float32)
    y = (x[:, 0] > 0.5).astype(int)
    users = np.arange(100) % 4
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y, user_train=users, user_test=users)


def test_a_run_is_resumed_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    write_data(home / "mine.npz")
    (home / "my_own_net.py").write_text(MODULE)
    command = [sys.executable, "-m", "cabafl"]
    begin = ["run", *SETTINGS, *MORE, "model.name=my_own_net:net", "--quiet"]
    subprocess.run([*command, *begin, "--out", "../run", "--until", "20"], cwd=home, check=True)
    subprocess.run([*command, "resume", "../run", "--quiet"], cwd=elsewhere, check=True)
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(home)
    simulate(load_experiment(None, [*SETTINGS, *MORE, "model.name=my_own_net:net"]), "../whole")
    del sys.modules["my_own_net"]
    same_bytes(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("workers", [0, 1])
def test_changed_samples_are_refused(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With workers, which move the samples to shared memory, as without."""
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "mine.npz")
    with pytest.raises(Paused):
        simulate(load_experiment(None, [*SETTINGS, *MORE, "model.name=mlp", f"run.workers={workers}"]), "run", until=20)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    write_data(tmp_path / "mine.npz", seed=2)
    for go_on in (resume, finish):
        with pytest.raises(UserError, match=r"^data.dataset = 'npz': the samples are not those that the run in run be"):
            go_on("run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    write_data(tmp_path / "mine.npz")
    assert resume("run") is not None


def paused_run(*more: str) -> dict[str, bytes]:
    with pytest.raises(Paused):
        simulate(load_experiment(None, [*SETTINGS, *MORE, "model.name=mlp", *more]), "run", until=20)
    return {path.name: path.read_bytes() for path in Path("run").iterdir()}


def whole_run(*more: str) -> None:
    simulate(load_experiment(None, [*SETTINGS, *MORE, "model.name=mlp", *more]), "whole")


def test_moved_data_are_found_at_their_new_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "mine.npz")
    whole_run()
    before = paused_run()
    Path("moved").mkdir()
    Path("mine.npz").rename("moved/mine.npz")
    for go_on in (resume, finish):
        with pytest.raises(UserError, match=r"mine\.npz"):
            go_on("run")
    write_data(tmp_path / "other.npz", seed=2)
    with pytest.raises(UserError, match=r"^data.dataset = 'npz': the samples are not those that the run in run began"):
        resume("run", settings=["data.root=other.npz"])
    assert {path.name: path.read_bytes() for path in Path("run").iterdir()} == before
    with pytest.raises(Paused):
        resume("run", settings=["data.root=moved/mine.npz"], until=40)
    monkeypatch.chdir(tmp_path / "moved")
    assert resume("../run") is not None  # the new place is kept, as an absolute path
    same_bytes(tmp_path / "whole", tmp_path / "run")


def test_a_run_that_was_finished_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "mine.npz")
    paused_run()
    Path("mine.npz").rename("new.npz")
    Path("run").rename("moved run")
    assert finish("moved run", settings=["data.root=new.npz"])["ended_by"] == "finish"
    assert resume("moved run", settings=["run.virtual_time=80"]) is not None


def test_weights_are_needed_at_the_start_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "mine.npz")
    simulate(load_experiment(None, [*SETTINGS, *MORE, "model.name=mlp"]), "first")
    Path("first/model.safetensors").rename("start.safetensors")
    whole_run("model.weights=start.safetensors")
    paused_run("model.weights=start.safetensors")
    weights = Path("start.safetensors").read_bytes()
    Path("start.safetensors").unlink()
    with pytest.raises(Paused):
        resume("run", until=40)
    for path in Path("run").glob("checkpoint*"):  # as if it had been killed before the first one
        path.unlink()
    with pytest.raises(UserError, match=r"^model.weights = '.*start.safetensors': cannot be read: No such file"):
        resume("run")
    Path("other.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"^model.weights = '.*other.safetensors': cannot be read"):
        resume("run", settings=["model.weights=other.safetensors"])
    Path("other.safetensors").write_bytes(Path("whole/model.safetensors").read_bytes())
    with pytest.raises(
        UserError, match=r"^model.weights: not the file that the run in run began with; accepted: the sa"
    ):
        resume("run", settings=["model.weights=other.safetensors"])
    Path("new.safetensors").write_bytes(weights)
    assert resume("run", settings=["model.weights=new.safetensors"]) is not None
    same_bytes(tmp_path / "whole", tmp_path / "run")


def test_a_folder_of_the_hub_format_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("set").mkdir()
    here = load_experiment(None, ["data.dataset=hf:./set"])
    assert with_absolute_paths(here).data.root == str(tmp_path / "set")
    assert with_absolute_paths(here).data.dataset == "hf:./set"
    on_the_hub = load_experiment(None, ["data.dataset=hf:ylecun/mnist"])
    assert with_absolute_paths(on_the_hub) == on_the_hub


def test_an_environment_without_the_new_entries_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "mine.npz")
    with pytest.raises(Paused):
        simulate(load_experiment(None, [*SETTINGS, *MORE, "model.name=mlp"]), "run", until=20)
    path = Path("run/environment.json")
    about = json.loads(path.read_text())
    assert about["folder"] == os.fspath(tmp_path)
    path.write_text(json.dumps({key: value for key, value in about.items() if key not in ("data", "folder", "files")}))
    assert resume("run") is not None
