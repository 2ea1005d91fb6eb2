"""The job of a simulated device, and what happens to it in virtual time."""

import math
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from cabafl.engine.core import FOREVER, Flight
from cabafl.fleet import Fate, Fleet
from cabafl.methods.base import Weights


class Kind(IntEnum):
    """Kinds of entries in the event queue."""

    FINISH = 0  # a device finishes a job
    TIMEOUT = 1  # the server gives up a job
    FEATURES = 2
    TIMER = 3
    EVALUATE = 4
    CRASH = 5  # a device loses its job
    LEAVE = 6
    RETURN = 7
    READY = 8  # a device has a result that it holds


@dataclass
class SimulatedFlight(Flight):
    """A job of a simulated device, whose end is known when it is dispatched: the upload, or for a job that is held the
    end of the training. The upload of a held result is a second part, with its own seconds and joules."""

    seconds: float = field(default=0.0, init=False)  # from ``since`` to the end
    joules: float = field(default=0.0, init=False)
    corrupt: str | None = field(default=None, init=False)
    needed: bool = field(default=False, init=False)  # its result will be used
    ticket: int | None = field(default=None, init=False)  # from the executor, if the result is needed
    epochs: int | None = field(default=None, init=False)  # as many as it does if it was told to finish; None: all

    @property
    def end(self) -> float:
        """When it ends, or the part of it that is under way."""
        return self.since + self.seconds

    def plan(self, fleet: Fleet, epochs: int, stretch: float) -> None:
        """Sets its seconds and joules: of all of its epochs, ``epochs`` if the method does not say, ``stretch`` times
        slower than usual."""
        device, objective = self.device, self.objective
        whole = objective.epochs is None and fleet.most_passes is None
        work = 1.0 if whole else fleet.passes(device, objective.epochs or epochs) / epochs
        self.seconds, self.joules = fleet.job(device, work * stretch, 2 if self.correction is None else 3)
        if objective.hold:
            upload = fleet.transfer(device)
            self.seconds, self.joules = self.seconds - upload[0], self.joules - upload[1]

    def crash_time(self, fate: Fate) -> float:
        """When its device loses it; never, if it does not."""
        return FOREVER if fate.crash_at is None else self.started + fate.crash_at * self.seconds

    def stop_early(self, now: float, fleet: Fleet, epochs: float) -> bool:
        """Ends the training with the running one of ``epochs`` epochs; False if that is the last one, or over. Epochs
        take equal times, after latency and downloads; the last may be a part of one."""
        way = fleet.transfer(self.device)[0]
        before = fleet.latency + way * (1 if self.correction is None else 2)
        computing = self.seconds - before - (0.0 if self.objective.hold else way)
        if not 0 < computing < math.inf:
            return False
        running = max(1, math.ceil((now - self.started - before) / computing * epochs))
        if running >= epochs:
            return False
        saved = computing * (epochs - running) / epochs
        self.epochs, self.seconds = running, self.seconds - saved
        if self.end < now:  # rounded, at the very end of an epoch
            self.seconds = now - self.started + math.ulp(now)
        self.joules -= saved * fleet.compute_watts.item(self.device)
        return True


def corrupted(weights: Weights, how: str | None) -> Weights:
    """The upload of a faulty device: all NaN, or of the wrong length."""
    return np.full_like(weights, np.nan) if how == "nan" else np.zeros(weights.size + 1, dtype=np.float32)
