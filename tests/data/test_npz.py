"""The user's own arrays: shapes, labels, users, and files that cannot be used."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cabafl.assembly import make_server_task
from cabafl.config import load_experiment
from cabafl.data import load
from cabafl.errors import UserError
from cabafl.samples import make_data

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
        ((16, 16, 9), np.uint8, "image", (9, 16, 16)),
        ((9, 16, 16), np.int64, "image", (9, 16, 16)),
        ((16, 14, 9), np.float32, "image", (16, 14, 9)),
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


def test_text_labels_become_classes_with_names(tmp_path: Path) -> None:
    words = np.array(["sit", "walk", "run", "sit"])
    data = load("npz", root=save(tmp_path, arrays(y_train=np.tile(words, 2), y_test=words.astype("S4"))))
    assert (data.classes, data.class_names) == (3, ("run", "sit", "walk"))
    assert data.test.y.tolist() == [1, 2, 0, 1]


def test_labels_that_are_not_their_own_numbers_keep_them_as_names(tmp_path: Path) -> None:
    content = arrays(y_train=np.array([-5, 7] * 4), y_test=np.array([7, 7, -5, 7]))
    assert load("npz", root=save(tmp_path, content)).class_names == ("-5", "7")
    assert load("npz", root=save(tmp_path, arrays())).class_names == ()


@pytest.mark.parametrize("y", [np.array([2, 0, 0, 2]), np.array(["c", "a", "a", "c"])])
def test_given_class_names_fix_the_classes_and_their_order(tmp_path: Path, y: Any) -> None:
    names = np.array(["a", "z", "c"])
    content = arrays(y_train=np.tile(y, 2), y_test=y, class_names=names)
    data = load("npz", root=save(tmp_path, content))
    assert (data.classes, data.class_names, data.test.y.tolist()) == (3, ("a", "z", "c"), [2, 0, 0, 2])


@pytest.mark.parametrize(
    ("y", "stored"),
    [
        (np.linspace(0, 1, 4), (4,)),
        (np.linspace(0, 1, 4)[:, None], (4,)),
        (np.ones((4, 3)), (4, 3)),
        (np.eye(4, dtype=int), (4, 4)),
        (np.eye(4, dtype=bool), (4, 4)),
    ],
)
def test_numbers_to_predict_stay_numbers(tmp_path: Path, y: Any, stored: tuple[int, ...]) -> None:
    data = load("npz", root=save(tmp_path, arrays(y_train=np.concatenate([y, y]), y_test=y)))
    assert (data.classes, data.class_names, data.test.labelled) == (0, (), False)
    assert (tuple(data.test.y.shape), data.test.y.dtype) == (stored, torch.float32)
    assert np.allclose(data.train.y[:4].numpy(), y.reshape(stored))


def test_normalisation_in_the_file_counts(tmp_path: Path) -> None:
    mean, deviation = np.arange(5.0), np.arange(1, 6)
    for shape in ((5,), (7, 5)):
        content = arrays(shape, mean=mean, deviation=deviation, feature_names=np.array(list("abcde")))
        data = load("npz", root=save(tmp_path, content))
        assert np.allclose(data.inputs(data.test.x).numpy(), (content["x_test"] - mean) / deviation, atol=1e-4)
        assert data.feature_names == tuple("abcde")
    data = load("npz", root=save(tmp_path, arrays((6, 6), np.uint8, mean=np.array([0.5]), deviation=np.array([2]))))
    assert (data.mean, data.deviation) == ((0.5,), (2.0,))


def test_test_samples_alone_are_for_a_server(tmp_path: Path) -> None:
    path = save(tmp_path, arrays((6, 6), np.uint8, x_train=None, y_train=None))
    data = load("npz", root=path)
    assert (len(data.train), len(data.test), data.classes, data.input_shape) == (0, 4, 4, (1, 6, 6))
    settings = ["data.dataset=npz", f"data.root={path}", "model.name=mlp"]
    said: list[str] = []
    task = make_server_task(load_experiment(None, settings), said.append)
    assert (len(task.dataset.test), said) == (4, ["npz: 4 test samples; the devices bring their own to train on"])
    with pytest.raises(UserError, match=r"^data\.dataset = 'npz': has test samples only; accepted: on a server"):
        make_data(load_experiment(None, settings))


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
        ({"x_train": np.array([[object()]] * 8)}, "plain arrays: it holds Python objects; accepted: numbers and text$"),
        (
            {"user_trian": np.arange(8)},
            r"unknown array user_trian, did you mean 'user_train'\?; accepted: x_test, y",
        ),
        ({"x_test": None, "X-Test": np.zeros((4, 5))}, r"unknown array X-Test, did you mean 'x_test'\?"),
        ({"y_train": np.zeros((8, 2)), "y_test": np.zeros((4, 3))}, "y_train is float64 of shape .* but y_test is"),
        ({"y_train": np.full(8, np.nan), "y_test": np.zeros(4)}, r"y_train\[0\] is nan"),
        ({"y_train": np.zeros((8, 2, 2)), "y_test": np.zeros((4, 2, 2))}, "y_train has shape"),
        (
            {"y_train": np.zeros(8, complex), "y_test": np.zeros(4, complex)},
            "y_train is complex128 .*; accepted: integers",
        ),
        ({"class_names": np.array(["a", "a"])}, "class_names has no name, or one twice"),
        ({"class_names": np.array(["a", "b"])}, r"y_train\[2\] is 2, a label missing .* \(known: 0, 1\)"),
        ({"mean": np.zeros(5)}, "deviation is missing; accepted: mean and deviation with 5 finite numbers each"),
        ({"mean": np.zeros(4), "deviation": np.ones(5)}, r"mean is float64 of shape \(4,\); accepted"),
        ({"mean": np.zeros(5), "deviation": np.zeros(5)}, "deviation has 0.0; accepted: numbers above 0"),
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


def test_a_file_of_another_kind_is_not_called_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "own.npz").write_text("a table, perhaps")
    with pytest.raises(UserError, match=r"own\.npz cannot be used: not a \.npz file of plain arrays; accepted: what"):
        load("npz", root=tmp_path / "own.npz")


def test_arrays_for_other_purposes_are_left_alone(tmp_path: Path) -> None:
    path = save(tmp_path, arrays(classes=np.array(["a"]), channels=np.array(["b"]), user_train=np.arange(8)))
    assert len(load("npz", root=path).train) == 8


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
