"""FEMNIST in LEAF's format, and LEAF files that cannot be used."""

import json
from pathlib import Path

import pytest
import torch

from cabafl.data import load
from cabafl.errors import UserError
from tests.data.leaf_files import write_leaf


def grey(*values: float) -> list[list[float]]:
    return [[value] * 784 for value in values]


def test_femnist(tmp_path: Path) -> None:
    write_leaf(tmp_path / "train", {"f01_b": (grey(0.0, 1.0), [0, 61]), "f00_a": (grey(51 / 255), [3])})
    write_leaf(tmp_path / "train", {"f02_c": (grey(1.0), [5])}, "all_data_1.json")
    write_leaf(tmp_path / "test", {"f00_a": (grey(1.0), [4]), "f09_new": (grey(1.0), [4])})
    data = load("femnist", root=tmp_path)
    assert data.train.users is not None
    assert data.train.users.tolist() == [1, 1, 0, 2]
    assert data.test.users is not None
    assert data.test.users.tolist() == [0, 3]
    assert data.train.y.tolist() == [0, 61, 3, 5]
    assert data.train.x.dtype == torch.uint8
    inputs = data.inputs(data.train.x)
    assert inputs.shape == (4, 1, 28, 28)
    assert inputs[:, 0, 0, 0].tolist() == pytest.approx([1.0, -1.0, 0.6, -1.0])


def test_femnist_keeps_floats_that_are_not_multiples_of_one_255th(tmp_path: Path) -> None:
    write_leaf(tmp_path / "train", {"a": (grey(0.123), [0]), "b": (grey(1.0), [0])})
    write_leaf(tmp_path / "test", {"a": (grey(0.5), [0])})
    data = load("femnist", root=tmp_path)
    assert data.inputs(data.train.x)[:, 0, 0, 0].tolist() == pytest.approx([(0.5 - 0.123) / 0.5, -1.0])
    assert data.inputs(data.test.x)[0, 0, 0, 0] == 0


def test_without_train_and_test_folders_the_last_tenth_of_each_user_is_for_testing(tmp_path: Path) -> None:
    write_leaf(tmp_path, {"a": (grey(*[0.0] * 20), list(range(20))), "b": (grey(*[0.0] * 9), [1] * 9)})
    data = load("femnist", root=tmp_path)
    assert data.test.y.tolist() == [18, 19]
    assert len(data.train) == 27


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "not valid JSON"),
        ("[]", "a JSON object expected"),
        ("{}", "LEAF keys"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {}}', "user 'a' needs lists"),
        ('{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[0]], "y": [0]}}}', "num_samples says 2"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[0]], "y": [0]}}}', "784"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[0, 1], [0]], "y": [0, 0]}}}', "x: "),
        (json.dumps({"user_data": {"a": {"x": grey(float("nan")), "y": [0]}}}), r"x\[0, 0\] is nan"),
        (json.dumps({"user_data": {"a": {"x": grey(1.5), "y": [0]}}}), r"0\.\.1"),
        (json.dumps({"user_data": {"a": {"x": grey(0.5), "y": [62]}}}), r"accepted: 0\.\.61"),
        ('{"users": [], "user_data": {}}', "no training samples"),
    ],
)
def test_broken_leaf_files(tmp_path: Path, content: str, reason: str) -> None:
    write_leaf(tmp_path / "test", {"a": (grey(0.0), [0])})
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "all_data_0.json").write_text(content)
    with pytest.raises(UserError, match=reason):
        load("femnist", root=tmp_path)
