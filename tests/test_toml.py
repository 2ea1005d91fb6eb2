"""TOML is written so that it reads back as the same experiment."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.checked import make_method
from cabafl.config import Experiment, load_experiment
from cabafl.errors import UserError
from cabafl.toml import experiment_toml, read_toml, toml_value

scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
tables = st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), scalars)


@given(scalars | st.lists(scalars) | tables)
def test_a_value_reads_back(value: object) -> None:
    assert tomllib.loads(f"x = {toml_value(value)}")["x"] == value


@pytest.mark.parametrize("comments", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["run.max_dispatches=5", "run.virtual_time=none"],
        ["fleet.tiers={ high = 40, low = 60 }", "fleet.tier_compute_watts={ low = 6.0 }", "fleet.faults.loss=0.1"],
        ["method.name=fedasync", "method.alpha=0.3", 'data.root=C:\\dir "x"'],
    ],
)
def test_an_experiment_reads_back(settings: list[str], comments: bool, tmp_path: Path) -> None:
    experiment = load_experiment(None, settings)
    parameters = make_method(experiment).parameters
    file = tmp_path / "a.toml"
    file.write_text(experiment_toml(experiment, parameters, comments), encoding="utf-8")
    again = load_experiment(file)
    assert again.model_copy(update={"method": experiment.method}) == experiment
    assert make_method(again).parameters == parameters


def test_every_key_is_written_and_explained() -> None:
    text = experiment_toml(Experiment(), make_method(Experiment()).parameters, comments=True)
    lines = [line for line in text.splitlines() if "=" in line]
    assert len(lines) > 60
    assert [line for line in lines if " # " not in line] == []


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.toml: cannot be read \(No such file or directory\); accepted: a file"):
        read_toml(tmp_path / "gone.toml", "a file")
    (tmp_path / "bad.toml").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"bad\.toml: not a TOML file"):
        read_toml(tmp_path / "bad.toml")
