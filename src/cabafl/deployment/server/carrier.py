"""What the server needs from a network: messages to nodes, answers to messages. Flower is one; tests have their own."""

from collections.abc import Collection
from typing import Protocol

from cabafl.deployment.messages import Answer
from cabafl.methods.base import FeatureKind, Job, Weights


class Forgotten(Exception):
    """The network does not know this run any more: everything under way has to be sent again, on a new connection."""


class Hiccup(Exception):
    """A call failed that may well succeed later."""


class Interrupted(Exception):
    """A call was given up because this process is to end."""


class Carrier(Protocol):
    """Sends messages and brings answers; nothing here waits. All calls may raise the exceptions above."""

    @property
    def network(self) -> str:
        """Run ID; if it changes, earlier messages are lost."""

    @property
    def settling(self) -> bool:
        """Whether nodes may seem offline only because the network has just come back."""

    def nodes(self) -> set[int]:
        """The nodes that are online."""

    def greet(self, node: int) -> str:
        """Tells a node what the experiment is; the answer is `Hello`. All senders return the message's name."""

    def send(self, node: int, job: Job) -> str:
        """A job for a node; the answer is `TrainingReply`."""

    def ask(self, node: int, weights: Weights, kind: FeatureKind) -> str:
        """A question for a node's features; the answer is `FeatureReply`."""

    def receive(self, messages: Collection[str]) -> list[Answer]:
        """The answers that have arrived; each is given out once."""
