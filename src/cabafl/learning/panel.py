"""The devices on whose own samples the global model is evaluated (``run.evaluate_devices``)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cabafl.data.dataset import Dataset, Partition
from cabafl.errors import UserError
from cabafl.rng import rng

CHUNK = 2500  # approximate number of samples per job


@dataclass(frozen=True)
class Panel:
    """Some devices, and the numbers of each one's samples: test samples of its user, or its training samples."""

    devices: NDArray[np.int64]
    samples: Partition
    of_test: bool

    def chunks(self) -> list[range]:
        """Ranges of places in the panel, each with about `CHUNK` samples in total."""
        return self.samples.chunks(CHUNK)


def choose_panel(dataset: Dataset, partition: Partition, count: int, seed: int, natural: bool) -> Panel:
    """Draws ``count`` devices, the same for the whole run. With users (a ``natural`` partition) that have test samples,
    those are a device's own samples; else its training samples are."""
    test = _of_test(dataset, partition) if natural else None
    own = partition if test is None else test
    possible = np.flatnonzero(own.sizes > 0)
    if count > len(possible):
        raise UserError(
            f"run.evaluate_devices = {count}: only {len(possible)} devices have samples to evaluate; accepted: 1 to "
            f"{len(possible)}"
        )
    devices = np.sort(rng(seed, "evaluate devices").choice(possible, count, replace=False))
    parts = [own.device(int(device)) for device in devices]
    offsets = np.concatenate(([0], np.cumsum([len(part) for part in parts]))).astype(np.int64)
    return Panel(devices, Partition(np.concatenate(parts), offsets), test is not None)


def _of_test(dataset: Dataset, partition: Partition) -> Partition | None:
    """The test samples of each device's user; None if no user of a device has any."""
    if dataset.train.users is None or dataset.test.users is None:
        return None
    users = dataset.train.users.numpy()[partition.indices[partition.offsets[:-1]]]
    tested = dataset.test.users.numpy()
    order = np.argsort(tested, kind="stable")
    first, last = (np.searchsorted(tested[order], users, side) for side in ("left", "right"))
    if not (last > first).any():
        return None
    indices = np.concatenate([np.sort(order[a:b]) for a, b in zip(first, last, strict=True)])
    return Partition(indices.astype(np.int64), np.concatenate(([0], np.cumsum(last - first))).astype(np.int64))
