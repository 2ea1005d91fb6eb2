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
from cabafl.lifecycle.simulate import resume
from cabafl.lifecycle.stopping import Paused
from tests.runs import same_bytes

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


def test_a_run_is_resumed_from_another_folder(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    write_data(home / "mine.npz")
    (home / "my_own_net.py").write_text(MODULE)
    command = [sys.executable, "-m", "cabafl"]
    begin = ["run", *SETTINGS, *MORE, "model.name=my_own_net:net", "--quiet"]
    subprocess.run([*command, *begin, "--out", "../run", "--until", "20"], cwd=home, check=True)
    subprocess.run([*command, *begin, "--out", "../whole"], cwd=home, check=True)
    subprocess.run([*command, "resume", "../run", "--quiet"], cwd=elsewhere, check=True)
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


def test_an_environment_without_the_new_entries_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "mine.npz")
    with pytest.raises(Paused):
        simulate(load_experiment(None, [*SETTINGS, *MORE, "model.name=mlp"]), "run", until=20)
    path = Path("run/environment.json")
    about = json.loads(path.read_text())
    assert about["folder"] == os.fspath(tmp_path)
    path.write_text(json.dumps({key: value for key, value in about.items() if key not in ("data", "folder")}))
    assert resume("run") is not None
