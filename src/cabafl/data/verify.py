"""What a complete data set contains. Everything that is fetched is read once and counted before it is put in place."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from cabafl.data import load
from cabafl.data.transfer import SourceError
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.data.dataset import Dataset, Split


@dataclass(frozen=True)
class Census:
    """The exact number of samples of each class and of users in the training and the test part."""

    train: tuple[int, ...]
    test: tuple[int, ...]
    users: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Minimum:
    """For sets without an official size: fewer training samples or users mean that something is missing."""

    samples: int
    users: int


CENSUS: dict[str, Census] = {
    "cifar10": Census((5000,) * 10, (1000,) * 10),
    "cifar100": Census((500,) * 100, (100,) * 100),
    "activity": Census((1226, 1073, 986, 1286, 1374, 1407), (496, 471, 420, 491, 532, 537), (21, 9)),
}
MINIMUM: dict[str, Minimum] = {
    "femnist": Minimum(700_000, 3_400),
    "shakespeare": Minimum(3_000_000, 900),
}


def check(name: str, folder: Path, whole: bool = True) -> str:
    """Reads the data set and returns its size as a line; raises `SourceError` if it is unusable or incomplete.

    ``whole`` = False accepts a FEMNIST or Shakespeare of any size, such as a sample that LEAF has drawn.
    """
    try:
        data = load(name, root=folder)
    except UserError as error:
        raise SourceError(str(error)) from None
    _compare(name, data, whole)
    users = ""
    if data.train.users is not None:
        users = f", {_users(data.train)} users for training and {_users(data.test)} for testing"
    return f"verified: {len(data.train):,} + {len(data.test):,} samples, {data.classes} classes{users}"


def _compare(name: str, data: "Dataset", whole: bool) -> None:
    if name in CENSUS:
        expected = CENSUS[name]
        found = Census(_per_class(data.train), _per_class(data.test), (_users(data.train), _users(data.test)))
        if found != expected:
            raise SourceError(
                f"{name} is incomplete or altered: {sum(found.train):,} + {sum(found.test):,} samples of "
                f"{len(found.train)} classes and {sum(found.users)} users, expected {sum(expected.train):,} + "
                f"{sum(expected.test):,} of {len(expected.train)} and {sum(expected.users)}, in fixed shares"
            )
    elif name in MINIMUM and whole:
        least = MINIMUM[name]
        if len(data.train) < least.samples or _users(data.train) < least.users:
            raise SourceError(
                f"{name} is incomplete: {len(data.train):,} training samples of {_users(data.train):,} users, expected "
                f"at least {least.samples:,} of {least.users:,}"
            )


def _per_class(split: "Split") -> tuple[int, ...]:
    return tuple(torch.bincount(split.y).tolist())


def _users(split: "Split") -> int:
    return 0 if split.users is None else len(np.unique(split.users.numpy()))
