"""What the server needs from a network: messages to nodes, answers to messages. Flower is one; tests have their own."""

from collections.abc import Collection
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from cabafl.methods.base import FeatureKind, Job, Weights


class Forgotten(Exception):
    """The network does not know this run any more: everything under way has to be sent again, on a new connection."""


class Hiccup(Exception):
    """A call failed that may well succeed later."""


class Interrupted(Exception):
    """A call was given up because this process is to end."""


class Hello(NamedTuple):
    """A device is ready; it has so many samples. ``fresh``: its process hears of the experiment for the first time."""

    samples: int
    fresh: bool = True


class Result(NamedTuple):
    """A trained model, as it came from the device."""

    weights: Weights
    seconds: float
    joules: float
    loss: float | None


class Row(NamedTuple):
    """A device's feature vector."""

    features: npt.NDArray[np.float32]


class Trouble(NamedTuple):
    """There will be no other answer. ``unknown``: the network has no such message (any more)."""

    reason: Literal["crash", "rejected", "timeout", "unknown"]
    text: str


class Answer(NamedTuple):
    """What became of a message."""

    message: str
    content: Hello | Result | Row | Trouble


class Carrier(Protocol):
    """Sends messages and brings answers; nothing here waits. All calls may raise the exceptions above."""

    @property
    def network(self) -> str:
        """Names the memory in which messages are kept: another name, and all earlier messages are gone."""

    @property
    def settling(self) -> bool:
        """Whether nodes may seem offline only because the network has just come back."""

    def nodes(self) -> set[int]:
        """The nodes that are online."""

    def greet(self, node: int) -> str:
        """Tells a node what the experiment is; the answer is `Hello`. All senders return the message's name."""

    def send(self, node: int, job: Job) -> str:
        """A job for a node; the answer is `Result`."""

    def ask(self, node: int, weights: Weights, kind: FeatureKind) -> str:
        """A question for a node's features; the answer is `Row`."""

    def receive(self, messages: Collection[str]) -> list[Answer]:
        """The answers that have arrived; each is given out once."""
