"""Data sets as tensors: readers of the genuine formats, one file per format."""

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cabafl.data.catalogue import DESCRIPTIONS, NAMES, DataInfo, data_home, folder_of
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.data.dataset import Dataset

__all__ = ["DESCRIPTIONS", "NAMES", "DataInfo", "data_home", "load"]


def load(
    name: str,
    *,
    root: Path | None = None,
    labels: Literal["fine", "coarse"] = "fine",
    seed: int = 1,
    devices: int | None = None,
) -> "Dataset":
    """The data set ``name`` from the files under ``root`` (default: its folder in `data_home`).

    ``seed`` and ``devices`` shape generated data only; ``labels`` chooses the level of CIFAR-100.
    """
    _check(name, labels)
    try:
        return _read(name, root, labels, seed, devices)
    except OSError as error:  # e.g. a folder that may not be entered
        raise UserError(f"data set {name} cannot be read: {error}") from None


def _read(name: str, root: Path | None, labels: Literal["fine", "coarse"], seed: int, devices: int | None) -> "Dataset":
    folder = folder_of(name, root)
    match name:  # readers load torch, so each is imported when it is needed
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
        case "npz":
            from cabafl.data import npz

            return npz.read(root)
        case _:
            from cabafl.data import synthetic

            return synthetic.generate(seed, devices)


def _check(name: str, labels: str) -> None:
    if name not in NAMES:
        near = get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"data.dataset = {name!r} is unknown; {hint}accepted: {', '.join(NAMES)}")
    if labels not in ("fine", "coarse"):
        raise UserError(f"data.labels = {labels!r} is unknown; accepted: fine, coarse")
    if labels == "coarse" and name != "cifar100":
        raise UserError(f"data.labels = 'coarse': {name} has one label level; accepted: fine (coarse with cifar100)")
