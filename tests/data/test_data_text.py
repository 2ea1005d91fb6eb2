"""Readers of JSON and text files: LEAF, role texts, activity features."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cabafl.data import load
from cabafl.data.shakespeare import ALPHABET, symbols
from cabafl.errors import UserError

SHARED = Path(__file__).parents[3] / "shared" / "data"


def write_leaf(folder: Path, users: dict[str, tuple[list[Any], list[Any]]], file: str = "all_data_0.json") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (folder / file).write_text(json.dumps(content))


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


def test_femnist_keeps_floats_that_are_no_bytes(tmp_path: Path) -> None:
    write_leaf(tmp_path / "train", {"a": (grey(0.123), [0]), "b": (grey(1.0), [0])})
    write_leaf(tmp_path / "test", {"a": (grey(0.5), [0])})
    data = load("femnist", root=tmp_path)
    assert data.inputs(data.train.x)[:, 0, 0, 0].tolist() == pytest.approx([(0.5 - 0.123) / 0.5, -1.0])
    assert data.inputs(data.test.x)[0, 0, 0, 0] == 0


def test_femnist_without_parts_tests_on_each_users_last_tenth(tmp_path: Path) -> None:
    write_leaf(tmp_path, {"a": (grey(*[0.0] * 20), list(range(20))), "b": (grey(*[0.0] * 9), [1] * 9)})
    data = load("femnist", root=tmp_path)
    assert data.test.y.tolist() == [18, 19]
    assert len(data.train) == 27


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "no valid JSON"),
        ("[]", "a JSON object is expected"),
        ("{}", "LEAF keys"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {}}', "user 'a' needs lists"),
        ('{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[0]], "y": [0]}}}', "num_samples says 2"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[0]], "y": [0]}}}', "784"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[0, 1], [0]], "y": [0, 0]}}}', "x: "),
        (json.dumps({"user_data": {"a": {"x": grey(float("nan")), "y": [0]}}}), r"x\[0, 0\] is nan"),
        (json.dumps({"user_data": {"a": {"x": grey(1.5), "y": [0]}}}), r"0\.\.1"),
        (json.dumps({"user_data": {"a": {"x": grey(0.5), "y": [62]}}}), r"accepted: 0\.\.61"),
        ('{"users": [], "user_data": {}}', "no training sample"),
    ],
)
def test_broken_leaf_files(tmp_path: Path, content: str, reason: str) -> None:
    write_leaf(tmp_path / "test", {"a": (grey(0.0), [0])})
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "all_data_0.json").write_text(content)
    with pytest.raises(UserError, match=reason):
        load("femnist", root=tmp_path)


def test_the_alphabet_has_80_symbols_and_strangers_become_spaces() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    assert symbols(ALPHABET).tolist() == list(range(80))
    assert symbols("é\ud800\U0001f600_").tolist() == [1, 1, 1, 1]


def test_shakespeare_in_leaf_format(tmp_path: Path) -> None:
    write_leaf(tmp_path / "train", {"B": (["ab" * 40, "c" * 80], ["a", "}"]), "A": (["\n" * 80], ["!"])})
    write_leaf(tmp_path / "test", {"A": (["z" * 80], ["z"])})
    data = load("shakespeare", root=tmp_path)
    assert (data.kind, data.classes, data.input_shape) == ("text", 80, (80,))
    assert data.train.y.tolist() == [ALPHABET.index("a"), 79, 2]
    assert data.train.users is not None
    assert data.train.users.tolist() == [1, 1, 0]
    assert data.inputs(data.train.x).dtype == torch.int64
    assert data.train.x[0, :2].tolist() == [ALPHABET.index("a"), ALPHABET.index("b")]


@pytest.mark.parametrize(("x", "y"), [("a" * 79, "b"), ("a" * 80, "bc"), (3, "b")])
def test_shakespeare_windows_have_80_characters(tmp_path: Path, x: Any, y: str) -> None:
    write_leaf(tmp_path / "train", {"A": ([x], [y])})
    with pytest.raises(UserError, match=r"all_data_0\.json cannot be used"):
        load("shakespeare", root=tmp_path)


@pytest.mark.parametrize("name", ["roles.json.gz", "roles.json"])
def test_role_texts_become_windows_that_never_cross_the_cut(tmp_path: Path, name: str) -> None:
    long = "".join(ALPHABET[2 + i % 70] for i in range(499))
    content = json.dumps(
        {"p__LONG": [long, "x" * 500], "p__AGAIN": [long[:400], "y" * 199], "p__SHORT": ["hi"]}
    ).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    data = load("shakespeare", root=path)
    texts = {0: f"{long[:400]} {'y' * 199}", 1: f"{long} {'x' * 500}"}
    for part, first, last in ((data.train, 0.0, 0.8), (data.test, 0.8, 1.0)):
        pieces = [(user, text[int(first * len(text)) : int(last * len(text))]) for user, text in texts.items()]
        expected = [
            (user, symbols(piece[i : i + 80]).tolist(), int(symbols(piece[i + 80])[0]))
            for user, piece in pieces
            for i in range(len(piece) - 80)
        ]
        assert part.users is not None
        assert list(zip(part.users.tolist(), part.x.tolist(), part.y.tolist(), strict=True)) == expected


def test_a_role_file_in_the_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "shakespeare_roles.json").write_text(json.dumps({"A": ["word " * 200]}))
    assert len(load("shakespeare", root=tmp_path).train) == 720


@pytest.mark.parametrize("content", ['{"A": "text"}', '{"A": [1]}', '{"A": ["short"]}', "{}", "[]", "nonsense"])
def test_broken_role_files(tmp_path: Path, content: str) -> None:
    path = tmp_path / "roles.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"roles\.json cannot be used"):
        load("shakespeare", root=path)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
def test_all_of_shakespeare() -> None:
    data = load("shakespeare", root=SHARED / "shakespeare_roles.json.gz")
    assert len(data.train) > 3_000_000
    assert torch.bincount(data.train.y).argmax() == 1  # the space


def write_activity(folder: Path, **replaced: str) -> None:
    for part, rows, people in (("train", 4, "7\n7\n1\n30\n"), ("test", 2, "2\n7\n")):
        (folder / part).mkdir(parents=True)
        files = {
            "X": "\n".join("  " + " ".join(f"{(row - 1) / 4: .7e}" for _ in range(561)) for row in range(rows)),
            "y": "\n".join(str(1 + 5 * (row % 2)) for row in range(rows)) + "\n",
            "subject": people,
        }
        for name, content in files.items():
            (folder / part / f"{name}_{part}.txt").write_text(replaced.get(f"{name}_{part}", content))


@pytest.mark.parametrize("inner", ["", "UCI HAR Dataset"])
def test_activity(tmp_path: Path, inner: str) -> None:
    write_activity(tmp_path / inner)
    data = load("activity", root=tmp_path)
    assert (data.kind, data.classes, data.input_shape) == ("vector", 6, (561,))
    assert data.inputs(data.train.x)[:, 0].tolist() == [-0.25, 0.0, 0.25, 0.5]
    assert data.train.y.tolist() == [0, 5, 0, 5]
    assert data.train.users is not None
    assert data.train.users.tolist() == [1, 1, 0, 2]
    assert data.test.users is not None
    assert data.test.users.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("X_train", "1 2 3\n", "561 features"),
        ("X_train", "", "empty"),
        ("X_train", "1 2\n1\n", "X_train"),
        ("X_test", " ".join(["nan"] * 561) + "\n" + " ".join(["0"] * 561), "is nan"),
        ("y_train", "1\n2\n", "4 lines"),
        ("y_train", "1\n2\n3\n7\n", r"accepted: 0\.\.5"),
        ("subject_test", "1\nx\n", "subject_test"),
    ],
)
def test_broken_activity_files(tmp_path: Path, file: str, content: str, reason: str) -> None:
    write_activity(tmp_path, **{file: content})
    with pytest.raises(UserError, match=reason) as caught:
        load("activity", root=tmp_path)
    assert f"{file}.txt" in str(caught.value)


def test_symbols_of_nothing() -> None:
    assert np.array_equal(symbols(""), np.empty(0, np.uint8))
