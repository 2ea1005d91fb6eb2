"""Everything that can happen to a server of real devices, in the order it is dealt with.

The server's state after an input follows from its state before and the input alone. A journal of inputs therefore
brings a killed server back to where it was, and a recorded run can be repeated without any device.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cabafl.methods.base import LossReason, Weights
from cabafl.state import State


@dataclass(frozen=True)
class Started(State):
    """The run begins."""

    time: float


@dataclass(frozen=True)
class Joined(State):
    """A device is there, for the first time or again, and says how many samples it has."""

    time: float
    device: int
    samples: int


@dataclass(frozen=True)
class Left(State):
    """A device is not reachable any more."""

    time: float
    device: int


@dataclass(frozen=True)
class Arrived(State):
    """A device answered a job; nothing is checked yet but that it is a vector of numbers."""

    time: float
    job: int
    weights: Weights
    seconds: float
    joules: float
    loss: float | None = None


@dataclass(frozen=True)
class Failed(State):
    """A job will not be answered, or was answered with something that is no upload at all."""

    time: float
    job: int
    reason: LossReason


@dataclass(frozen=True)
class Gathered(State):
    """A feature collection is over: one row per device, and who answered."""

    time: float
    rows: npt.NDArray[np.float32]
    answered: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Passed(State):
    """Nothing happened, but time went by: what was due is done."""

    time: float


Input = Started | Joined | Left | Arrived | Failed | Gathered | Passed
