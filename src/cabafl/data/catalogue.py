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
    forms: tuple[tuple[str, ...], ...] = ()  # files of a complete folder (patterns); one of these sets is enough
    licence: str | None = None  # None: not stated, or that of the user's own data

    @property
    def fetchable(self) -> bool:
        """Whether `cabafl data fetch` gets it."""
        return bool(self.forms)


@dataclass(frozen=True)
class HubOptions:
    """How to read a data set in Hugging Face form, or data of the user's own; None: found out from the data set."""

    input_column: str | None = None
    label_column: str | None = None
    user_column: str | None = None  # None: no users
    train_split: str = "train"
    test_split: str | None = None
    test_share: float | None = None  # cut off the training split instead of reading a test split
    subset: str | None = None  # the configuration, for names on the Hub that have several
    tokens: bool = False  # the user's own arrays are text: the task predicts symbols


def _inside(folder: str, *files: str) -> tuple[tuple[str, ...], ...]:
    """The files in a folder of this name, or without it."""
    return tuple(f"{folder}/{file}" for file in files), files


def _fetch(name: str, files: str) -> str:
    return f"get it with `cabafl data fetch {name}`, or set data.root to the folder with {files}"


_IDX = "train-images-idx3-ubyte[.gz] and the three other idx files"
_IDX_FORM = tuple(f"{part}-{kind}-ubyte*" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
_ACTIVITY = tuple(f"{part}/{kind}_{part}.txt" for part in ("train", "test") for kind in ("X", "y", "subject"))
_LEAF_FORM = ("train/*.json", "test/*.json")

DESCRIPTIONS: dict[str, DataInfo] = {  # one entry per name in `names.DATASETS`
    "mnist5k": DataInfo(
        "5,000 handwritten digits, 28x28; 400 of each class are training samples",
        "MNIST, http://yann.lecun.com/exdb/mnist; CC BY-SA 3.0",
        "comes with this package; without data.root nothing is needed",
        10,
        users=False,
        licence="CC BY-SA 3.0",
    ),
    "mnist": DataInfo(
        "70,000 handwritten digits, 28x28",
        "http://yann.lecun.com/exdb/mnist",
        _fetch("mnist", _IDX),
        10,
        users=False,
        forms=(_IDX_FORM,),
        licence="CC BY-SA 3.0",
    ),
    "fashion-mnist": DataInfo(
        "70,000 images of clothes, 28x28",
        "https://github.com/zalandoresearch/fashion-mnist",
        _fetch("fashion-mnist", _IDX),
        10,
        users=False,
        forms=(_IDX_FORM,),
        licence="MIT",
    ),
    "cifar10": DataInfo(
        "60,000 colour images, 32x32",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        _fetch("cifar10", "cifar-10-batches-py"),
        10,
        users=False,
        forms=_inside("cifar-10-batches-py", *(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    ),
    "cifar100": DataInfo(
        "60,000 colour images, 32x32, 100 fine and 20 coarse labels",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        _fetch("cifar100", "cifar-100-python"),
        100,
        users=False,
        forms=_inside("cifar-100-python", "train", "test"),
    ),
    "femnist": DataInfo(
        "handwritten digits and letters, grouped by writer, 28x28",
        "LEAF, https://leaf.cmu.edu; NIST Special Database 19",
        _fetch("femnist", "LEAF's train/*.json and test/*.json"),
        62,
        users=True,
        forms=(("femnist.npz",), _LEAF_FORM, ("*.json",)),
    ),
    "shakespeare": DataInfo(
        "text by speaking role: 80 characters, predict the next",
        "Project Gutenberg, https://www.gutenberg.org/ebooks/100; LEAF, https://leaf.cmu.edu",
        _fetch("shakespeare", "LEAF's train/*.json and test/*.json")
        + ", or to a role file {play__ROLE: [speech, ...]} (.json or .json.gz)",
        80,
        users=True,
        forms=(("shakespeare_roles.json.gz",), _LEAF_FORM, ("*.json",)),
        licence="public domain in the United States (Project Gutenberg)",
    ),
    "activity": DataInfo(
        "smartphone activity recordings, grouped by person, 561 features",
        "https://archive.ics.uci.edu/dataset/240",
        _fetch("activity", "`UCI HAR Dataset`"),
        6,
        users=True,
        forms=_inside("UCI HAR Dataset", *_ACTIVITY),
        licence="CC BY 4.0",
    ),
    "npz": DataInfo(
        "your own arrays x_train, y_train[, user_train], x_test, y_test",
        "a NumPy file, data.root = FILE.npz",
        "set data.root to a .npz file with the arrays x_train, y_train[, user_train], x_test, y_test",
        None,
        users=True,
        licence="not known here: data of the user's own",
    ),
    "synthetic": DataInfo(
        "generated class clusters, 32 features, any number of devices",
        "generated",
        "generated, no files needed",
        10,
        users=True,
        licence="none: generated",
    ),
}


BUILT_IN = ("mnist5k", "synthetic")  # there without any fetching

HUB = DataInfo(  # every name that starts with `names.HUB`
    "any data set in Hugging Face form: a folder, or a name on the Hub",
    "the Hugging Face Hub, or a folder written by `datasets` or with Parquet files",
    "set data.dataset to hf:FOLDER, or to hf:NAME to download it with the package datasets",
    None,
    users=True,
)


def data_home() -> Path:
    """The parent folder of all data sets: $CABAFL_DATA, or ~/.cache/cabafl/data."""
    return Path(os.environ.get("CABAFL_DATA") or "~/.cache/cabafl/data").expanduser()


def folder_of(name: str, root: Path | None) -> Path:
    """The folder a data set is read from: ``root`` if given, else its folder in `data_home`."""
    return data_home() / name if root is None else Path(root).expanduser()


def is_present(name: str, root: Path | None = None) -> bool:
    """Whether a data set that can be fetched is complete in its folder."""
    folder = folder_of(name, root)
    return any(all(_has(folder, file) for file in form) for form in DESCRIPTIONS[name].forms)


def _has(folder: Path, pattern: str) -> bool:
    return any(path.is_file() for path in folder.glob(pattern))
