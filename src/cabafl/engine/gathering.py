"""Feature collections of simulated devices."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from cabafl.execution.base import Executor, FeatureJob, Interrupt
from cabafl.methods.base import FeatureKind, Ints, Weights
from cabafl.state import State

AHEAD = 64  # feature chunks computed ahead; limits how many are in memory


@dataclass(slots=True)
class Gathering(State):
    """A feature collection in progress."""

    weights: Weights
    feature: FeatureKind
    asked: Ints
    missing: Ints
    needed: bool
    instant: bool  # takes no time
    tickets: list[int] = field(default_factory=list)


class Gatherer:
    """Computes the features of all devices in chunks, some of them ahead of the time they are needed."""

    def __init__(self, executor: Executor, devices: int, interrupt: Interrupt) -> None:
        self.executor, self.devices, self.interrupt = executor, devices, interrupt
        self._features = np.zeros((devices, 0), dtype=np.float32)

    def submit(self, end: float, what: Gathering) -> None:
        """Starts the first chunks of a collection that ends at ``end``."""
        if what.needed:
            chunks = self.executor.feature_chunks[:AHEAD]
            what.tickets = [self._submit_chunk(end, what, devices) for devices in chunks]

    def _submit_chunk(self, end: float, what: Gathering, devices: range) -> int:
        return self.executor.submit(FeatureJob(what.weights, what.feature, devices), end)

    def table(self, end: float, what: Gathering) -> npt.NDArray[np.float32]:
        """The feature table, one row per device. It overwrites the previous table chunk by chunk, so that the features
        of a large fleet are in memory only once. After the first chunk it cannot be interrupted."""
        chunks = self.executor.feature_chunks if what.needed else []
        tickets = deque(what.tickets)
        for i, devices in enumerate(chunks):
            part = self.executor.result(tickets.popleft(), self.interrupt if i == 0 else None)
            if i + AHEAD < len(chunks):
                tickets.append(self._submit_chunk(end, what, chunks[i + AHEAD]))
            if part.shape[1] > self._features.shape[1]:  # a chunk without samples has width 0
                # torch aligns memory, so that sums over it have the same bits in every run
                self._features = torch.zeros((self.devices, part.shape[1])).numpy()
            self._features[devices.start : devices.stop] = part if part.shape[1] else 0.0
        return self._features
