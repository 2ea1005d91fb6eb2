"""Groups devices of similar data by their features."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cabafl.methods.base import Ints

ROUNDS = 10  # of k-means; groups hardly change after that


def grouped(features: npt.NDArray[np.float32], sizes: Ints, groups: int) -> Ints:
    """The group of each device, numbered from 0 without gaps, at most ``groups`` of them; shape (devices,).

    k-means on the directions in which the mean features of the devices differ from the mean of all. The first centres
    are far apart: each is the device least similar to those before. Deterministic: torch aligns its memory, so products
    have the same bits in every run.

    Args:
        features: Feature sums, shape (devices, feature length). Zero rows are unknown: they have no direction, and join
            the first group.
        sizes: Training samples per device.
        groups: The largest number of groups.
    """
    directions = _directions(features, sizes)
    centres = directions[_far_apart(directions, groups)].clone()
    for _ in range(ROUNDS):
        nearest = _nearest(directions, centres)
        sums = torch.zeros_like(centres).index_add_(0, nearest, directions)
        norms = sums.norm(dim=1, keepdim=True)
        centres = torch.where(norms > 0, sums / norms.clamp_min(1e-30), centres)
    found: Ints = np.unique(_nearest(directions, centres).numpy(), return_inverse=True)[1].astype(np.int64)
    return found


def _nearest(directions: Tensor, centres: Tensor) -> Tensor:
    """The centre that each direction is most similar to; the first among equals."""
    return (directions @ centres.T).argmax(dim=1)


def _directions(features: npt.NDArray[np.float32], sizes: Ints) -> Tensor:
    """Unit vectors from the mean feature of all devices to that of each; zero for unknown ones."""
    rows = torch.from_numpy(features).clone()
    known = rows.any(dim=1)
    rows /= torch.from_numpy(np.maximum(sizes, 1))[:, None]
    rows -= rows[known].mean(dim=0) if known.any() else 0.0
    rows[~known] = 0.0
    norms: Tensor = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(norms > 0, norms, 1.0)


def _far_apart(directions: Tensor, count: int) -> list[int]:
    """Devices that point in different directions, the first of them device 0."""
    chosen = [0]
    closest = directions @ directions[0]
    while len(chosen) < min(count, len(directions)):
        chosen.append(int(closest.argmin()))
        closest = torch.maximum(closest, directions @ directions[chosen[-1]])
    return chosen
