"""MNIST and Fashion-MNIST: idx files, plain or gzipped."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cabafl.data.dataset import Dataset, Split
from cabafl.data.files import class_numbers, corrupt, read_bytes, require

MNIST_MEAN, MNIST_DEVIATION = (0.1307,), (0.3081,)
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
NORMALISATION = {"mnist": (MNIST_MEAN, MNIST_DEVIATION), "fashion-mnist": ((0.2860,), (0.3530,))}


def read(folder: Path, name: str) -> Dataset:
    """Reads training and test images and labels from the four idx files in ``folder``."""
    mean, deviation = NORMALISATION[name]
    train, test = _split(folder, name, "train"), _split(folder, name, "t10k")
    return Dataset(name, "image", train, test, 10, mean, deviation, CLOTHES if name == "fashion-mnist" else ())


def _split(folder: Path, name: str, part: str) -> Split:
    images = _find(folder, name, f"{part}-images-idx3-ubyte")
    labels = _find(folder, name, f"{part}-labels-idx1-ubyte")
    x, y = read_idx(images, 3), class_numbers(labels, read_idx(labels, 1), 10)
    if x.shape[1:] != (28, 28):
        raise corrupt(images, f"28x28 images expected, found {x.shape[1]}x{x.shape[2]}")
    if len(x) != len(y):
        raise corrupt(labels, f"{len(y)} labels for {len(x)} images")
    return Split(torch.from_numpy(x[:, None]), torch.from_numpy(y))


def _find(folder: Path, name: str, stem: str) -> Path:
    return require(name, folder / stem, folder / f"{stem}.gz")


def read_idx(path: Path, dimensions: int) -> NDArray[Any]:
    """Reads an idx file of unsigned bytes: 0, 0, type 8, number of dimensions, their big-endian sizes, data."""
    content = read_bytes(path)
    head = 4 + 4 * dimensions
    if len(content) < head or content[:4] != bytes((0, 0, 8, dimensions)):
        raise corrupt(path, f"not an idx file of unsigned bytes with {dimensions} dimension(s)")
    shape = tuple(np.frombuffer(content, ">u4", dimensions, offset=4).tolist())
    count = int(np.prod(shape, dtype=object))
    if len(content) - head != count or count == 0:
        raise corrupt(path, f"the header announces {count} bytes of data (shape {shape}), found {len(content) - head}")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape).copy()
