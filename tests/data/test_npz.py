"""The user's own arrays: shapes, labels, users, and files that cannot be used."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cabafl.data import load
from cabafl.errors import UserError

SHARED = Path(__file__).parents[3] / "shared" / "data"
RNG = np.random.default_rng(5)


def arrays(x_shape: tuple[int, ...] = (5,), dtype: Any = np.float32, **replaced: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "x_train": (RNG.random((8, *x_shape)) * 200).astype(dtype),
        "y_train": np.arange(8) % 4,
        "x_test": (RNG.random((4, *x_shape)) * 200).astype(dtype),
        "y_test": np.arange(4),
    }
    return {key: value for key, value in (content | replaced).items() if value is not None}


def save(tmp_path: Path, content: dict[str, Any]) -> Path:
    path = tmp_path / "own.npz"
    np.savez_compressed(path, **content)
    return path


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "stored"),
    [
        ((28, 28), np.uint8, "image", (1, 28, 28)),
        ((28, 28, 1), np.uint8, "image", (1, 28, 28)),
        ((32, 30, 3), np.uint8, "image", (3, 32, 30)),
        ((3, 32, 30), np.uint8, "image", (3, 32, 30)),
        ((1, 28, 28), np.float64, "image", (1, 28, 28)),
        ((16, 16, 4), np.float32, "image", (4, 16, 16)),
        ((2, 16, 16), np.float32, "image", (2, 16, 16)),
        ((128, 6), np.float32, "vector", (128, 6)),
        ((5,), np.float64, "vector", (5,)),
        ((5,), np.int16, "vector", (5,)),
        ((5,), np.uint8, "vector", (5,)),
    ],
)
def test_shapes(tmp_path: Path, shape: tuple[int, ...], dtype: Any, kind: str, stored: tuple[int, ...]) -> None:
    content = arrays(shape, dtype)
    data = load("npz", root=save(tmp_path, content))
    assert (data.kind, data.input_shape, data.classes) == (kind, stored, 4)
    inputs = data.inputs(data.train.x)
    assert inputs.dtype == torch.float32
    if kind == "image":
        assert torch.allclose(inputs.mean((0, 2, 3)), torch.zeros(stored[0]), atol=1e-4)
        assert torch.allclose(inputs.std((0, 2, 3), correction=0), torch.ones(stored[0]), atol=1e-4)
    else:
        assert np.allclose(inputs.numpy(), content["x_train"])


def test_channels_last_are_moved_not_mixed(tmp_path: Path) -> None:
    content = arrays((4, 5, 3), np.uint8)
    data = load("npz", root=save(tmp_path, content))
    assert np.array_equal(data.test.x.numpy(), content["x_test"].transpose(0, 3, 1, 2))


def test_a_constant_image_does_not_divide_by_zero(tmp_path: Path) -> None:
    data = load(
        "npz",
        root=save(tmp_path, arrays(x_train=np.full((8, 4, 4), 7, np.uint8), x_test=np.zeros((4, 4, 4), np.uint8))),
    )
    assert torch.isfinite(data.inputs(data.test.x)).all()


def test_labels_and_users_become_dense(tmp_path: Path) -> None:
    content = arrays(
        y_train=np.array([-5, 7, 7, 100, -5, 7, 7, 100])[:, None],
        y_test=np.array([100, 7, -5, 7]),
        user_train=np.array(["bob", "amy", "amy", "zoe", "bob", "bob", "bob", "bob"]),
        user_test=np.array(["kim", "amy", "zoe", "aaa"]),
    )
    data = load("npz", root=save(tmp_path, content))
    assert data.classes == 3
    assert data.train.y.tolist() == [0, 1, 1, 2, 0, 1, 1, 2]
    assert data.test.y.tolist() == [2, 1, 0, 1]
    assert data.train.users is not None
    assert data.train.users.tolist() == [1, 0, 0, 2, 1, 1, 1, 1]
    assert data.test.users is not None
    assert data.test.users.tolist() == [4, 0, 2, 3]


def test_without_users(tmp_path: Path) -> None:
    assert load("npz", root=save(tmp_path, arrays())).train.users is None


@pytest.mark.parametrize(
    ("replaced", "reason"),
    [
        ({"y_train": None}, "missing y_train; found: x_test, y_test, x_train"),
        ({"y_train": np.arange(7)}, r"y_train has shape \(7,\); \(8,\) or \(8, targets\) expected"),
        ({"y_test": np.arange(4.0)}, "y_train is int64 .* but y_test is float64"),
        ({"y_test": np.array([0, 1, 2, 9])}, r"y_test\[3\] is 9, a label missing from y_train"),
        ({"x_train": np.full((8, 5), np.nan, np.float32)}, r"x_train\[0, 0\] is nan"),
        ({"x_test": np.full((4, 5), np.inf, np.float32)}, r"x_test\[0, 0\] is inf"),
        ({"x_test": np.zeros((4, 6), np.float32)}, "x_train is float32 of shape"),
        ({"x_train": np.zeros((0, 5), np.float32)}, "x_train is empty"),
        ({"x_train": np.zeros(8, np.float32), "x_test": np.zeros(4, np.float32)}, "accepted: uint8 images"),
        ({"x_train": np.zeros((8, 4, 4), np.int64), "x_test": np.zeros((4, 4, 4), np.int64)}, "accepted: uint8"),
        ({"x_train": np.zeros((8, 2), "U3"), "x_test": np.zeros((4, 2), "U3")}, "accepted: uint8 images"),
        ({"x_train": np.array([[object()]] * 8)}, "not a .npz file of plain arrays"),
        ({"user_train": np.arange(3)}, "user_train has shape"),
        ({"user_train": np.arange(8.0)}, "user_train is float64; integers or strings"),
        ({"x_train": np.full((8, 5), 1e300), "x_test": np.zeros((4, 5))}, r"x_train\[0, 0\] is inf"),
    ],
)
def test_wrong_arrays(tmp_path: Path, replaced: dict[str, Any], reason: str) -> None:
    path = save(tmp_path, arrays(**replaced))
    with pytest.raises(UserError, match=reason) as caught:
        load("npz", root=path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b[:100] + b"\0" * 40 + b[140:], lambda b: b"?"]
)
def test_damaged_file(tmp_path: Path, damage: Any) -> None:
    path = save(tmp_path, arrays())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"own\.npz cannot be used"):
        load("npz", root=path)


def test_a_single_array_is_rejected(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(UserError, match="single array"):
        load("npz", root=tmp_path / "x.npy")


def test_data_root_must_be_set() -> None:
    with pytest.raises(UserError, match=r"data\.root is not set"):
        load("npz")


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared/data beside the repository is missing")
def test_writers_of_mnist() -> None:
    data = load("npz", root=SHARED / "mnist_writers.npz")
    assert data.train.users is not None
    assert (len(data.train), int(data.train.users.max()) + 1, data.classes) == (60000, 539, 10)
