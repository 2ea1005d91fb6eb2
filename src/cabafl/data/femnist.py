"""FEMNIST: handwritten characters grouped by writer, in LEAF's JSON format or as the arrays `data fetch` writes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cabafl.data.dataset import Dataset, Split
from cabafl.data.files import check_finite, class_numbers, corrupt, dense_users
from cabafl.data.leaf import Samples, read_parts, to_splits
from cabafl.data.npz import read_arrays
from cabafl.rng import rng

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
CLASSES = len(CHARACTERS)
FILE = "femnist.npz"
TRAIN_SHARE = 0.9  # of each writer's samples, as LEAF splits them by default


def read(folder: Path) -> Dataset:
    """28x28 images. The negative deviation inverts them: a pixel x becomes (0.5 - x) / 0.5."""
    if (folder / FILE).is_file():
        splits = _read_arrays(folder / FILE)
    else:
        train, test = read_parts(folder, "femnist", _convert)
        if any(x.dtype != np.uint8 for _, x, _ in train + test):
            train, test = _as_floats(train), _as_floats(test)
        splits = to_splits(folder, train, test)
    return Dataset("femnist", "image", *splits, CLASSES, (0.5,), (-0.5,), tuple(CHARACTERS))


def split_by_writer(x: NDArray[np.uint8], y: NDArray[np.int64], writers: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Training and test arrays: a random tenth of each writer's samples is for testing, by LEAF's rounding.

    The result depends on the samples only, not on their order: all sources give the same arrays.
    """
    order = np.lexsort((x.reshape(len(x), -1).view(f"S{x[0].size}").ravel(), y, writers))
    test = np.zeros(len(x), bool)
    names, starts = np.unique(writers[order], return_index=True)
    for name, start, end in zip(names.tolist(), starts, [*starts[1:], len(x)], strict=True):
        count = int(end - start)
        kept = 1 if count == 2 else max(1, int(TRAIN_SHARE * count))
        test[start + rng(0, f"femnist test samples of {name}").permutation(count)[kept:]] = True
    arrays: dict[str, NDArray[Any]] = {}
    for part, chosen in (("train", order[~test]), ("test", order[test])):
        arrays |= {f"x_{part}": x[chosen], f"y_{part}": y[chosen], f"user_{part}": writers[chosen]}
    return arrays


def _read_arrays(path: Path) -> tuple[Split, Split]:
    arrays = read_arrays("femnist", path, ("x_train", "y_train", "user_train", "x_test", "y_test", "user_test"))
    users = dense_users(arrays["user_train"], arrays["user_test"])
    train, test = (_split(path, arrays, part, ids) for part, ids in zip(("train", "test"), users, strict=True))
    return train, test


def _split(path: Path, arrays: dict[str, NDArray[Any]], part: str, users: torch.Tensor | None) -> Split:
    x, y = arrays[f"x_{part}"], class_numbers(path, arrays[f"y_{part}"], CLASSES)
    if x.dtype != np.uint8 or x.shape[1:] != (28, 28) or not len(x) == len(y) == len(arrays[f"user_{part}"]) > 0:
        raise corrupt(path, f"x_{part} must be uint8 images 28x28 with a label and a user each, found shape {x.shape}")
    return Split(torch.from_numpy(x[:, None]), torch.from_numpy(y), users)


def _convert(path: Path, x: list[Any], y: list[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    try:
        pixels = np.asarray(x, dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise corrupt(path, f"x: {error}") from None
    if pixels.ndim != 2 or pixels.shape[1] != 784:
        raise corrupt(path, f"x must have 784 pixels per sample, found shape {pixels.shape}")
    check_finite(path, "x", pixels)
    if pixels.min() < 0 or pixels.max() > 1:
        raise corrupt(path, f"pixels must lie in 0..1, found {pixels.min()}..{pixels.max()}")
    return _compact(pixels).reshape(-1, 1, 28, 28), class_numbers(path, y, CLASSES)


def _compact(pixels: NDArray[np.float32]) -> NDArray[Any]:
    """Converts back to uint8 if every pixel is exactly a byte divided by 255, as LEAF writes them."""
    grey = np.rint(pixels * 255).astype(np.uint8)
    return grey if np.array_equal(grey.astype(np.float32) / np.float32(255), pixels) else pixels


def _as_floats(samples: list[Samples]) -> list[Samples]:
    return [(user, x if x.dtype != np.uint8 else x.astype(np.float32) / 255, y) for user, x, y in samples]
