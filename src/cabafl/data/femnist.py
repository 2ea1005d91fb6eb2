"""FEMNIST: handwritten characters grouped by writer, in LEAF's JSON format."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cabafl.data.dataset import Dataset
from cabafl.data.files import check_finite, class_numbers, corrupt
from cabafl.data.leaf import Samples, read_parts, to_splits

CLASSES = 62


def read(folder: Path) -> Dataset:
    """28x28 images. The negative deviation inverts them: a pixel x becomes (0.5 - x) / 0.5."""
    train, test = read_parts(folder, "femnist", _convert)
    if any(x.dtype != np.uint8 for _, x, _ in train + test):
        train, test = _as_floats(train), _as_floats(test)
    splits = to_splits(folder, train, test)
    return Dataset("femnist", "image", *splits, CLASSES, mean=(0.5,), deviation=(-0.5,))


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
