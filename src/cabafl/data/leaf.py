"""The LEAF format: JSON files {users, num_samples, user_data: {user: {x, y}}} in the folders train/ and test/."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cabafl.data.dataset import Split
from cabafl.data.files import corrupt, dense_users, missing, read_json

Samples = tuple[str, NDArray[Any], NDArray[np.int64]]  # one user's name, inputs, labels
Convert = Callable[[Path, list[Any], list[Any]], tuple[NDArray[Any], NDArray[np.int64]]]


def read_parts(folder: Path, name: str, convert: Convert) -> tuple[list[Samples], list[Samples]]:
    """Training and test samples by user. Without train/ and test/, each user's last 10 % are test samples."""
    if (folder / "train").is_dir():
        train = _samples(folder / "train", name, convert)
        return train, _samples(folder / "test", name, convert)
    whole = _samples(folder, name, convert)
    cuts = [len(y) - len(y) // 10 for _, _, y in whole]
    train = [(user, x[:cut], y[:cut]) for (user, x, y), cut in zip(whole, cuts, strict=True)]
    return train, [(user, x[cut:], y[cut:]) for (user, x, y), cut in zip(whole, cuts, strict=True)]


def to_splits(folder: Path, train: list[Samples], test: list[Samples]) -> tuple[Split, Split]:
    """Concatenates the users' samples into a training and a test split; users become numbers."""
    for part, samples in (("training", train), ("test", test)):
        if not sum(len(y) for _, _, y in samples):
            raise corrupt(folder, f"no {part} samples found")
    users, test_users = dense_users(_names(train), _names(test))
    return _split(train, users), _split(test, test_users)


def _split(samples: list[Samples], users: torch.Tensor | None) -> Split:
    x = np.concatenate([x for _, x, _ in samples])
    y = np.concatenate([y for _, _, y in samples])
    return Split(torch.from_numpy(x), torch.from_numpy(y), users)


def _names(samples: list[Samples]) -> NDArray[Any]:
    return np.repeat(np.array([user for user, _, _ in samples]), [len(y) for _, _, y in samples])


def _samples(folder: Path, name: str, convert: Convert) -> list[Samples]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise missing(name, folder / "*.json")
    found = []
    for path in files:
        for user, x, y in _users(path):
            found.append((user, *convert(path, x, y)))
    return found


def _users(path: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    content = read_json(path)
    data = content.get("user_data")
    users = content.get("users", list(data) if isinstance(data, dict) else None)
    if not isinstance(data, dict) or not isinstance(users, list):
        raise corrupt(path, "LEAF keys users and user_data expected, found: " + (", ".join(content) or "nothing"))
    counts = content.get("num_samples", [None] * len(users))
    if not isinstance(counts, list) or len(counts) != len(users):
        raise corrupt(path, f"num_samples must have one entry for each of the {len(users)} users")
    for user, count in zip(users, counts, strict=True):
        x, y = _lists(path, data, user)
        if count not in (None, len(y)):
            raise corrupt(path, f"num_samples says {count} for user {user!r}, found {len(y)}")
        if y:
            yield str(user), x, y


def _lists(path: Path, data: dict[str, Any], user: Any) -> tuple[list[Any], list[Any]]:
    entry = data.get(user) if isinstance(user, str) else None
    x, y = (entry.get("x"), entry.get("y")) if isinstance(entry, dict) else (None, None)
    if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
        raise corrupt(path, f"user {user!r} needs lists x and y of equal length in user_data")
    return x, y
