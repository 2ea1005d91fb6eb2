"""CIFAR-10 and CIFAR-100, from the Python pickles published on their home page."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cabafl.data.dataset import Dataset, Split
from cabafl.data.files import class_numbers, corrupt, require
from cabafl.data.pickles import load_pickle
from cabafl.names import LabelLevel

FOLDER10, FOLDER100 = "cifar-10-batches-py", "cifar-100-python"
TRAIN10 = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
META100 = "meta"
MEAN10, DEVIATION10 = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)
MEAN100, DEVIATION100 = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)


def read_cifar10(folder: Path) -> Dataset:
    """Five training batches and the test batch, in ``folder`` or in its subfolder cifar-10-batches-py."""
    batches = [_batch(_find(folder, "cifar10", FOLDER10, file)) for file in TRAIN10]
    x = np.concatenate([x for x, _ in batches])
    train = Split(torch.from_numpy(x), torch.cat([labels["labels"] for _, labels in batches]))
    x, labels = _batch(_find(folder, "cifar10", FOLDER10, "test_batch"))
    test = Split(torch.from_numpy(x), labels["labels"])
    return Dataset("cifar10", "image", train, test, 10, MEAN10, DEVIATION10, CIFAR10_NAMES)


def read_cifar100(folder: Path, level: LabelLevel) -> Dataset:
    """``level`` selects the labels in ``y`` (100 or 20 classes); both levels are kept as ``fine`` and ``coarse``."""
    train = _split100(_find(folder, "cifar100", FOLDER100, "train"), level)
    test = _split100(_find(folder, "cifar100", FOLDER100, "test"), level)
    classes = 100 if level == "fine" else 20
    return Dataset("cifar100", "image", train, test, classes, MEAN100, DEVIATION100, _names100(folder, level, classes))


def _names100(folder: Path, level: LabelLevel, classes: int) -> tuple[str, ...]:
    """The names of the classes, if the file with them is there."""
    path = next((path for path in (folder / FOLDER100 / META100, folder / META100) if path.is_file()), None)
    names = [] if path is None else load_pickle(path).get(f"{level}_label_names", [])
    return tuple(str(name) for name in names) if len(names) == classes else ()


def _find(folder: Path, name: str, inner: str, file: str) -> Path:
    return require(name, folder / inner / file, folder / file)


def _split100(path: Path, level: str) -> Split:
    x, labels = _batch(path, fine_labels=100, coarse_labels=20)
    fine, coarse = labels["fine_labels"], labels["coarse_labels"]
    return Split(torch.from_numpy(x), fine if level == "fine" else coarse, fine=fine, coarse=coarse)


def _batch(path: Path, **levels: int) -> tuple[NDArray[np.uint8], dict[str, Tensor]]:
    """Images (N, 3, 32, 32) and label tensors of one file; ``levels`` maps each label key to its number of classes."""
    content = load_pickle(path)
    levels = levels or {"labels": 10}
    for key in ("data", *levels):
        if key not in content:
            raise corrupt(path, f"key {key!r} is missing, found: {', '.join(map(str, content)) or 'nothing'}")
    x = _images(path, content["data"])
    labels = {key: class_numbers(path, content[key], classes) for key, classes in levels.items()}
    for key, values in labels.items():
        if len(values) != len(x):
            raise corrupt(path, f"{len(values)} {key} for {len(x)} images")
    return x, {key: torch.from_numpy(values) for key, values in labels.items()}


def _images(path: Path, data: Any) -> NDArray[np.uint8]:
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8:
        raise corrupt(path, f"'data' must be a uint8 array, found {getattr(data, 'dtype', type(data).__name__)}")
    if data.ndim != 2 or data.shape[1] != 3072 or len(data) == 0:
        raise corrupt(path, f"'data' must have the shape (images, 3072), found {data.shape}")
    return data.reshape(-1, 3, 32, 32).copy()
