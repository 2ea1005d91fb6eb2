"""Generated data of other tasks than classification: numbers, labels, and text. Every user differs a little."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from cabafl.data.dataset import Dataset, Split
from cabafl.names import TargetKind
from cabafl.rng import rng

FEATURES, LABELS, SYMBOLS, WINDOW = 8, 5, 12, 10
NOISE = 0.1  # standard deviation of the numbers around their function
_OWN = 0.3  # standard deviation of a user's mean inputs
_LIKELY = 0.7  # probability of the likeliest next symbol

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def numbers(seed: int, users: Ints, test: int) -> Dataset:
    """One number: a sine of a weighted sum of the inputs, and noise."""
    weights = rng(seed, "data/synthetic/weights").standard_normal(FEATURES) / np.sqrt(FEATURES)

    def targets(x: Floats, part: str) -> NDArray[np.generic]:
        noise = rng(seed, f"data/synthetic/noise/{part}").standard_normal(len(x))
        return np.asarray(np.sin(x @ weights) + NOISE * noise, dtype=np.float32)

    return _vectors(seed, users, test, 1, targets)


def labels(seed: int, users: Ints, test: int) -> Dataset:
    """Five labels: a label holds if a weighted sum of the inputs is above its threshold."""
    draw = rng(seed, "data/synthetic/weights")
    weights = draw.standard_normal((FEATURES, LABELS)) / np.sqrt(FEATURES)
    thresholds = draw.uniform(0.0, 0.8, LABELS)
    return _vectors(seed, users, test, LABELS, lambda x, _: (x @ weights > thresholds).astype(np.float32))


def tokens(seed: int, users: Ints, test: int) -> Dataset:
    """Text of a chain of symbols: each has one likely successor, all others are equally likely. The target is the
    symbol after the window."""
    follows = rng(seed, "data/synthetic/weights").permutation(SYMBOLS)

    def split(part: str, users: Ints | None, count: int) -> Split:
        draw = rng(seed, f"data/synthetic/{part}")
        text = np.empty((count, WINDOW + 1), np.int64)
        favourites = rng(seed, "data/synthetic/own").integers(SYMBOLS, size=1 if users is None else users.max() + 1)
        start = draw.integers(SYMBOLS, size=count)
        own = draw.random(count) < 0.5  # half of a user's windows begin with its favourite symbol
        text[:, 0] = start if users is None else np.where(own, favourites[users], start)
        for step in range(WINDOW):
            likely = draw.random(count) < _LIKELY
            text[:, step + 1] = np.where(likely, follows[text[:, step]], draw.integers(SYMBOLS, size=count))
        owners = None if users is None else torch.from_numpy(users)
        return Split(torch.from_numpy(text[:, :-1].astype(np.uint8)), torch.from_numpy(text[:, -1].copy()), owners)

    return Dataset("synthetic", "text", split("train", users, len(users)), split("test", None, test), SYMBOLS)


def _vectors(
    seed: int, users: Ints, test: int, outputs: int, targets: Callable[[Floats, str], NDArray[np.generic]]
) -> Dataset:
    """Gaussian inputs around a centre per user; test samples come from all users alike."""
    own = _OWN * rng(seed, "data/synthetic/own").standard_normal((users.max() + 1, FEATURES), dtype=np.float32)

    def split(part: str, owners: Ints | None, count: int) -> Split:
        x = rng(seed, f"data/synthetic/{part}").standard_normal((count, FEATURES), dtype=np.float32)
        if owners is not None:
            x += own[owners]
        named = None if owners is None else torch.from_numpy(owners)
        return Split(torch.from_numpy(x), torch.from_numpy(targets(x, part)), named)

    return Dataset("synthetic", "vector", split("train", users, len(users)), split("test", None, test), outputs)


GENERATORS: dict[TargetKind, Callable[[int, Ints, int], Dataset]] = {
    "numbers": numbers,
    "labels": labels,
    "tokens": tokens,
}
