"""Generated data for tests at scale: one Gaussian cluster per class, any number of devices."""

import numpy as np
import torch
from numpy.typing import NDArray

from cabafl.data.dataset import Dataset, Split
from cabafl.data.partition import DEFAULT_DEVICES
from cabafl.errors import UserError
from cabafl.rng import rng

CLASSES, FEATURES, TEST_SAMPLES = 10, 32, 1000
_SPREAD = 0.6  # standard deviation of the class centres per feature; that of the noise is 1
_SAMPLES = 400_000  # in total, from 20,000 devices on
_CHUNK = 1 << 16


def generate(seed: int, devices: int | None = None) -> Dataset:
    """One user per device (default 100), each with a main class; half of the samples take it, half a random class.

    Up to 20,000 devices a user has 10 to 30 samples. Beyond that the mean shrinks to keep about 400,000 samples in
    total, but users never have fewer than 1 or 2 (a million devices: 1.5 million samples, 200 MB).
    """
    devices = DEFAULT_DEVICES if devices is None else devices
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
