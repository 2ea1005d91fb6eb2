"""Generated data for scale tests: one Gaussian cluster per class, any number of devices."""

import numpy as np
import torch
from numpy.typing import NDArray

from cabafl.data.dataset import Dataset, Split
from cabafl.errors import UserError
from cabafl.rng import rng

CLASSES, FEATURES, TEST_SAMPLES = 10, 32, 1000
_SPREAD = 0.6  # distance of the class centres from the origin, per feature, in units of the noise
_SAMPLES = 400_000
_CHUNK = 1 << 16


def generate(seed: int, devices: int | None = None) -> Dataset:
    """Users 0..devices-1 (default 100), one main class each: half of a user's samples on average are of it.

    A user has 10 to 30 samples up to 20,000 devices; beyond that the mean shrinks so that there are about 400,000
    samples in all, but never below 1 or 2 samples per user (a million devices: 1.5 million samples, 200 MB).
    """
    devices = 100 if devices is None else devices
    if devices < 1:
        raise UserError(f"data.devices = {devices}: at least 1 device is needed")
    draw = rng(seed, "data/synthetic/labels")
    mean = min(20.0, max(1.5, _SAMPLES / devices))
    sizes = draw.integers(int(np.ceil(mean / 2)), int(1.5 * mean), size=devices, endpoint=True)
    users = np.repeat(np.arange(devices), sizes)
    main = draw.integers(CLASSES, size=devices)[users]
    y = np.where(draw.random(len(users)) < 0.5, main, draw.integers(CLASSES, size=len(users)))
    train = _split(seed, "train", y, torch.from_numpy(users))
    return Dataset("synthetic", "vector", train, _split(seed, "test", np.arange(TEST_SAMPLES) % CLASSES), CLASSES)


def _split(seed: int, part: str, y: NDArray[np.int64], users: torch.Tensor | None = None) -> Split:
    centres = _SPREAD * rng(seed, "data/synthetic/centres").standard_normal((CLASSES, FEATURES), dtype=np.float32)
    x = np.empty((len(y), FEATURES), np.float32)
    rng(seed, f"data/synthetic/{part}").standard_normal(dtype=np.float32, out=x)
    for start in range(0, len(y), _CHUNK):
        x[start : start + _CHUNK] += centres[y[start : start + _CHUNK]]
    return Split(torch.from_numpy(x), torch.from_numpy(y), users)
