"""The messages between server and devices, independent of the network."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cabafl.methods.base import FeatureKind, LossReason, Objective, Weights

# What the server sends


@dataclass(frozen=True)
class TrainingJob:
    """A model to train."""

    number: int
    weights: Weights
    objective: Objective
    correction: Weights | None = None  # added to every gradient


@dataclass(frozen=True)
class FeatureQuery:
    """Asks every device for the features of its data under a model."""

    number: int
    weights: Weights
    kind: FeatureKind


# What a device computes


class TrainingReply(NamedTuple):
    """A trained model and its cost."""

    weights: Weights
    seconds: float
    joules: float
    loss: float | None  # mean of the last epoch, if the job asked for it
    square_loss: float | None = None  # mean squared sample loss of the first epoch, if the job asked for it
    steps: int = 1
    epochs: int = 1


class FeatureReply(NamedTuple):
    """A device's feature vector."""

    features: npt.NDArray[np.float32]


# What the server hears of a device


class Here(NamedTuple):
    """A device has joined the run, or says again that it has. A new ``process`` does not know earlier jobs."""

    device: int
    process: str
    samples: int


class Declined(NamedTuple):
    """A device is connected but does not take part."""

    device: int
    text: str


class Gone(NamedTuple):
    """A device is offline; ``process`` names the process that has gone, if that is known."""

    device: int
    process: str = ""


class Trained(NamedTuple):
    """A device has answered a job."""

    device: int
    job: int
    reply: TrainingReply


class Ready(NamedTuple):
    """A device has trained a job and holds the result until the server fetches it."""

    device: int
    job: int
    seconds: float
    joules: float


class Described(NamedTuple):
    """A device has answered a feature query; None: it refuses or cannot."""

    device: int
    query: int
    features: npt.NDArray[np.float32] | None
    text: str = ""


class JobFailed(NamedTuple):
    """A device does not answer a job. ``unknown``: it does not have the job."""

    device: int
    job: int
    reason: Literal["unknown"] | LossReason
    text: str


class Nonsense(NamedTuple):
    """A device has sent something that is not a valid message."""

    device: int
    text: str


News = Here | Declined | Gone | Trained | Ready | Described | JobFailed | Nonsense
