"""How long one device selection of CaBaFL takes."""

import time
from typing import NamedTuple

import numpy as np
import torch

from cabafl.methods.cabafl.features import FeatureTable
from cabafl.methods.cabafl.selector import balance_scores, best_device
from cabafl.rng import rng


class SelectionTime(NamedTuple):
    """Milliseconds over repetitions."""

    devices: int
    width: int
    slots: int
    median: float
    lowest: float
    highest: float


def measure(devices: int, width: int, slots: int = 10, repetitions: int = 50) -> SelectionTime:
    """One selection with every device but ``slots`` as candidates: scores of all of them and the best one."""
    torch.set_num_threads(1)
    draw = rng(1, "bench selection", devices, width)
    features = FeatureTable()
    features.replace(draw.random((devices, width), dtype=np.float32))
    samples = draw.integers(10, 500, devices)
    sizes = draw.integers(100, 5000, slots).astype(np.float64)
    candidates = np.sort(draw.permutation(devices)[slots:])
    times = []
    for _ in range(repetitions + 3):
        trace = draw.integers(0, devices, 5).tolist()
        started = time.perf_counter()
        similarity, spread = balance_scores(features, trace, sizes, 0, candidates, samples)
        best_device(candidates, similarity - spread)
        times.append(1e3 * (time.perf_counter() - started))
    measured = sorted(times[3:])
    return SelectionTime(devices, width, slots, measured[len(measured) // 2], measured[0], measured[-1])
