"""What server and devices say to each other, whatever carries it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cabafl.methods.base import FeatureKind, Objective, Weights


@dataclass(frozen=True)
class TrainingJob:
    """A model to train."""

    number: int
    weights: Weights
    objective: Objective


@dataclass(frozen=True)
class FeatureQuery:
    """Asks a device to describe its data under a model."""

    weights: Weights
    kind: FeatureKind


class Hello(NamedTuple):
    """A device is ready; it has so many samples. ``fresh``: its process hears of the experiment for the first time."""

    samples: int
    fresh: bool = True


class TrainingReply(NamedTuple):
    """The trained model, what it took, and the mean loss of the last epoch where the job asked for it."""

    weights: Weights
    seconds: float
    joules: float
    loss: float | None


class FeatureReply(NamedTuple):
    """A device's feature vector."""

    features: npt.NDArray[np.float32]


class Trouble(NamedTuple):
    """There will be no other answer. ``unknown``: the network does not have the message, or not any more."""

    reason: Literal["crash", "rejected", "timeout", "unknown"]
    text: str


class Answer(NamedTuple):
    """What became of a message."""

    message: str
    content: Hello | TrainingReply | FeatureReply | Trouble
