"""Shakespeare in LEAF's format and as role texts."""

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
from tests.data.leaf_files import write_leaf

SHARED = Path(__file__).parents[3] / "shared" / "data"


def test_the_alphabet_has_80_symbols_and_other_characters_become_spaces() -> None:
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
def test_role_texts_become_windows_within_each_part(tmp_path: Path, name: str) -> None:
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


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared/data beside the repository is missing")
def test_all_of_shakespeare() -> None:
    data = load("shakespeare", root=SHARED / "shakespeare_roles.json.gz")
    assert len(data.train) > 3_000_000
    assert torch.bincount(data.train.y).argmax() == 1  # the space


def test_symbols_of_nothing() -> None:
    assert np.array_equal(symbols(""), np.empty(0, np.uint8))
