"""Data sets as tensors: one reader per file format, reading the files as their authors publish them."""

from pathlib import Path
from typing import TYPE_CHECKING

from cabafl.data.catalogue import DESCRIPTIONS, DataInfo, HubOptions, data_home, folder_of
from cabafl.errors import UserError
from cabafl.names import DATASETS, HUB, LABEL_LEVELS, LabelLevel, TargetKind
from cabafl.validation import unknown

if TYPE_CHECKING:
    from cabafl.data.dataset import Dataset

__all__ = ["DESCRIPTIONS", "DataInfo", "HubOptions", "data_home", "load"]


def load(
    name: str,
    *,
    root: Path | None = None,
    labels: LabelLevel = "fine",
    seed: int = 1,
    devices: int | None = None,
    hub: HubOptions | None = None,
    targets: TargetKind = "class",
) -> "Dataset":
    """Reads the data set ``name`` from ``root`` (default: its folder in `data_home`).

    ``seed``, ``devices`` and ``targets`` only affect ``synthetic``; ``labels`` selects the label level of ``cifar100``;
    ``hub`` says how to read ``hf:NAME_OR_FOLDER``. Raises `UserError` if a file is missing or cannot be used.
    """
    _check(name, labels)
    try:
        if name.startswith(HUB):
            from cabafl.data import hf

            return hf.read(name.removeprefix(HUB), root, hub or HubOptions())
        if name == "synthetic":
            from cabafl.data import synthetic

            return synthetic.generate(seed, devices, targets)
        return _read(name, root, labels, targets == "tokens")
    except OSError as error:  # e.g. a folder without read permission
        raise UserError(f"data set {name} cannot be read: {error}") from None


def _read(name: str, root: Path | None, labels: LabelLevel, tokens: bool) -> "Dataset":
    folder = folder_of(name, root)
    match name:  # imported on demand: readers load torch
        case "mnist5k":
            from cabafl.data import mnist5k

            return mnist5k.read(root)
        case "cifar10" | "cifar100":
            from cabafl.data import cifar

            return cifar.read_cifar10(folder) if name == "cifar10" else cifar.read_cifar100(folder, labels)
        case "femnist":
            from cabafl.data import femnist

            return femnist.read(folder)
        case "shakespeare":
            from cabafl.data import shakespeare

            return shakespeare.read(folder)
        case "activity":
            from cabafl.data import activity

            return activity.read(folder)
        case "mnist" | "fashion-mnist":
            from cabafl.data import idx

            return idx.read(folder, name)
        case _:
            from cabafl.data import npz

            return npz.read(root, tokens)


def _check(name: str, labels: str) -> None:
    if name not in DATASETS and (not name.startswith(HUB) or name == HUB):
        raise unknown("data.dataset", name, [*DATASETS, f"{HUB}NAME_OR_FOLDER", "my_module:function"])
    if labels not in LABEL_LEVELS:
        raise unknown("data.labels", labels, LABEL_LEVELS)
    if labels == "coarse" and name != "cifar100":
        raise UserError(f"data.labels = 'coarse': {name} has one label level; accepted: fine (coarse with cifar100)")
