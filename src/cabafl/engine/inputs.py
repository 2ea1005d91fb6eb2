"""The inputs of `WallEngine`: everything that can happen to a server of real devices. Times are seconds of the run.

The engine's state after an input depends only on its state before and the input. A journal of inputs therefore restores
a killed server, and a recorded run can be replayed without devices.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cabafl.methods.base import LossReason, Weights
from cabafl.state import State


@dataclass(frozen=True)
class Started(State):
    """The run starts: enough devices have joined."""

    time: float


@dataclass(frozen=True)
class Joined(State):
    """A device joins or rejoins and reports its number of samples. ``process`` tells its processes apart."""

    time: float
    device: int
    samples: int
    process: str = ""


@dataclass(frozen=True)
class Left(State):
    """A device has gone offline or was banned."""

    time: float
    device: int


@dataclass(frozen=True)
class Arrived(State):
    """A device answered a job. The weights are a vector of numbers; nothing else is checked yet."""

    time: float
    job: int
    weights: Weights
    seconds: float
    joules: float
    loss: float | None = None
    square_loss: float | None = None
    steps: int = 1
    epochs: int | None = None  # None: as many as it was told


@dataclass(frozen=True)
class Held(State):
    """A device has trained a job and holds the result."""

    time: float
    job: int
    seconds: float
    joules: float


@dataclass(frozen=True)
class Failed(State):
    """A job will not be answered, or its answer is not an upload."""

    time: float
    job: int
    reason: LossReason


@dataclass(frozen=True)
class Gathered(State):
    """A feature collection has ended: one row per device, zeros where ``answered`` is False."""

    time: float
    rows: npt.NDArray[np.float32]
    answered: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Passed(State):
    """Only time has passed: whatever is due happens now."""

    time: float


@dataclass(frozen=True)
class Changed(State):
    """The operator changes a setting of the running experiment; see `engine.changes`."""

    time: float
    key: str
    value: float | int | str | None


@dataclass(frozen=True)
class Stopping(State):
    """The operator ends the run: no more jobs are sent. It is over when the jobs in flight have ended, or at once."""

    time: float
    at_once: bool


@dataclass(frozen=True)
class Operated(State):
    """The operator has done something that changes nothing in the engine, but belongs into the record: ``action`` is
    ``export`` (took the model away) or ``remove`` (shut out ``device``)."""

    time: float
    action: str
    device: int | None = None


Input = Started | Joined | Left | Arrived | Held | Failed | Gathered | Passed | Changed | Stopping | Operated
