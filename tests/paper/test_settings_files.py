"""The experiment files of the paper's settings, in a clone and in an installed package."""

import tomllib
from pathlib import Path

import pytest

import cabafl
from cabafl.paper import settings_files

ROOT = Path(__file__).parents[2]


def test_the_wheel_has_the_files_where_they_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    place = Path(included["force-include"]["experiments"])
    assert Path(cabafl.__file__).parent.parent / place == settings_files._INSTALLED
    installed = tmp_path / place
    installed.mkdir(parents=True)
    (installed / "cifar10-cnn-iid.toml").write_text("seed = 5\n")
    monkeypatch.setattr(settings_files, "_INSTALLED", installed)
    monkeypatch.setattr(settings_files, "_CLONE", tmp_path / "nowhere")
    assert settings_files.paper_file("cifar10-cnn-iid").read_text() == "seed = 5\n"


def test_a_clone_has_them_in_its_folder() -> None:
    assert settings_files.paper_file("cifar10-cnn-beta0.1.toml") == ROOT / "experiments/cifar10-cnn-beta0.1.toml"
