"""The messages between server and devices, independent of the network."""

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
    """Asks a device for the features of its data under a model."""

    weights: Weights
    kind: FeatureKind


class Hello(NamedTuple):
    """A device's answer to the greeting: it is ready."""

    samples: int
    fresh: bool = True  # whether its process gets this greeting for the first time


class TrainingReply(NamedTuple):
    """A trained model and its cost."""

    weights: Weights
    seconds: float
    joules: float
    loss: float | None  # mean of the last epoch, if the job asked for it


class FeatureReply(NamedTuple):
    """A device's feature vector."""

    features: npt.NDArray[np.float32]


class Trouble(NamedTuple):
    """There will be no other answer. ``unknown``: the network does not have the message (any more)."""

    reason: Literal["crash", "rejected", "timeout", "unknown"]
    text: str


class Answer(NamedTuple):
    """The answer to a message, by the message's ID."""

    message: str
    content: Hello | TrainingReply | FeatureReply | Trouble
