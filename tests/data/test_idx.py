"""MNIST and Fashion-MNIST from idx files."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cabafl.data import load
from cabafl.errors import UserError


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, zipped: bool = False) -> NDArray[np.uint8]:
    x = np.random.default_rng(0).integers(256, size=(6, 28, 28), dtype=np.uint8)
    y = np.arange(6, dtype=np.uint8)
    for part in ("train", "t10k"):
        for stem, array in ((f"{part}-images-idx3-ubyte", x), (f"{part}-labels-idx1-ubyte", y)):
            content = idx_bytes(array)
            path = folder / (stem + ".gz" * zipped)
            path.write_bytes(gzip.compress(content) if zipped else content)
    return x


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files(tmp_path: Path, name: str, zipped: bool) -> None:
    x = write_idx(tmp_path, zipped)
    data = load(name, root=tmp_path)
    assert np.array_equal(data.train.x.numpy()[:, 0], x)
    assert data.test.y.tolist() == list(range(6))
    assert data.name == name


@pytest.mark.parametrize(
    ("stem", "content"),
    [
        ("train-images-idx3-ubyte", b"\x00\x00"),
        ("train-images-idx3-ubyte", idx_bytes(np.zeros((6, 28, 28), np.uint8))[:-1]),
        ("train-images-idx3-ubyte", idx_bytes(np.zeros((6, 28, 27), np.uint8))),
        ("train-labels-idx1-ubyte", idx_bytes(np.zeros(5, np.uint8))),
        ("train-labels-idx1-ubyte", idx_bytes(np.full(6, 10, np.uint8))),
        ("train-labels-idx1-ubyte", struct.pack(">BBBBI", 0, 0, 8, 1, 2**32 - 1)),
    ],
)
def test_the_error_names_the_broken_file(tmp_path: Path, stem: str, content: bytes) -> None:
    write_idx(tmp_path)
    (tmp_path / stem).write_bytes(content)
    with pytest.raises(UserError, match=f"{stem} cannot be used"):
        load("mnist", root=tmp_path)


def test_the_error_names_a_truncated_gz_file(tmp_path: Path) -> None:
    write_idx(tmp_path, zipped=True)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"t10k-images-idx3-ubyte\.gz cannot be used"):
        load("mnist", root=tmp_path)
