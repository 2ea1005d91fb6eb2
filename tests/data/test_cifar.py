"""CIFAR-10 and CIFAR-100 from pickles of Python 2 and 3."""

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cabafl.data import load
from cabafl.errors import UserError


def images(n: int, seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(256, size=(n, 3072), dtype=np.uint8)


def write_cifar10(folder: Path, protocol: int = 2, **replaced: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        batch = {b"batch_label": name, b"labels": [i, 9, 0, 1], b"data": images(4, i), b"filenames": ["x.png"] * 4}
        batch |= {key.encode(): value for key, value in replaced.items()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("inner", ["", "cifar-10-batches-py"])
def test_cifar10(tmp_path: Path, protocol: int, inner: str) -> None:
    write_cifar10(tmp_path / inner, protocol)
    data = load("cifar10", root=tmp_path)
    assert (len(data.train), len(data.test), data.classes) == (20, 4, 10)
    assert np.array_equal(data.train.x[:4].numpy().reshape(4, 3072), images(4, 0))
    assert data.train.y[::4].tolist() == [0, 1, 2, 3, 4]
    assert data.mean == (0.491, 0.482, 0.447)


def python2_batch(x: NDArray[np.uint8], labels: list[int]) -> bytes:
    """What Python 2 and NumPy 1 wrote: old module names, and byte strings as BINSTRING."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    dtype = (
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    shape = b"".join(b"J" + struct.pack("<i", n) for n in x.shape) + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array += b"(K\x01" + shape + dtype + b"\x89" + text(x.tobytes()) + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([n]) for n in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


def test_cifar10_as_python_2_wrote_it(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "test_batch").write_bytes(python2_batch(images(3, 7), [4, 5, 6]))
    data = load("cifar10", root=tmp_path)
    assert data.test.y.tolist() == [4, 5, 6]
    assert np.array_equal(data.test.x.numpy().reshape(3, 3072), images(3, 7))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("data", np.zeros((4, 3071), np.uint8), "shape"),
        ("data", np.zeros((4, 3072), np.float32), "uint8"),
        ("data", "no array", "uint8"),
        ("labels", [1, 2, 3], "3 labels for 4 images"),
        ("labels", [1, 2, 3, 10], r"label 3 is 10; accepted: 0\.\.9"),
        ("labels", [1, 2, 3, -1], "label 3 is -1"),
        ("labels", [1, 2, 3, "x"], "integers"),
        ("labels", [1, 2, 3, [4]], "labels"),
    ],
)
def test_cifar10_with_wrong_content(tmp_path: Path, key: str, value: Any, reason: str) -> None:
    write_cifar10(tmp_path, **{key: value})
    with pytest.raises(UserError, match=f"data_batch_1 cannot be used: .*{reason}"):
        load("cifar10", root=tmp_path)


def test_cifar100_has_both_levels(tmp_path: Path) -> None:
    for part, n in (("train", 5), ("test", 3)):
        batch = {b"data": images(n, n), b"fine_labels": [99] * n, b"coarse_labels": [19] * n}
        (tmp_path / part).write_bytes(pickle.dumps(batch, protocol=2))
    fine, coarse = load("cifar100", root=tmp_path), load("cifar100", root=tmp_path, labels="coarse")
    assert (fine.classes, coarse.classes) == (100, 20)
    assert (fine.train.y.tolist(), coarse.train.y.tolist()) == ([99] * 5, [19] * 5)
    for data in (fine, coarse):
        assert data.test.fine is not None
        assert data.test.coarse is not None
        assert (data.test.fine.tolist(), data.test.coarse.tolist()) == ([99] * 3, [19] * 3)


def test_cifar100_without_coarse_labels(tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(pickle.dumps({b"data": images(1, 0), b"fine_labels": [1]}))
    (tmp_path / "test").write_bytes(b"")
    with pytest.raises(UserError, match="'coarse_labels' is missing, found: data, fine_labels"):
        load("cifar100", root=tmp_path)


def test_classes_have_their_names(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "ten")
    assert load("cifar10", root=tmp_path / "ten").class_names[3] == "cat"
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test"):
        batch = {"fine_labels": [0, 99], "coarse_labels": [0, 19], "data": images(2, 1)}
        (folder / name).write_bytes(pickle.dumps(batch))
    assert load("cifar100", root=tmp_path).class_names == ()
    meta = {f"{level}_label_names": [f"{level} {i}" for i in range(n)] for level, n in (("fine", 100), ("coarse", 20))}
    (folder / "meta").write_bytes(pickle.dumps(meta))
    assert load("cifar100", root=tmp_path).class_names[99] == "fine 99"
    assert load("cifar100", root=tmp_path, labels="coarse").class_names[19] == "coarse 19"
