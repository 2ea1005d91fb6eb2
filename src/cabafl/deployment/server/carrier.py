"""What the server needs from a network: messages to nodes and answers to messages. Implemented for Flower; tests have
their own."""

from collections.abc import Collection
from typing import Protocol

from cabafl.deployment.messages import Answer
from cabafl.methods.base import FeatureKind, Job, Weights


class Forgotten(Exception):
    """The network no longer knows this run: open a new connection and send everything under way again."""


class TemporaryFailure(Exception):
    """A call failed but may succeed later."""


class Interrupted(Exception):
    """A call was given up because this process was asked to stop."""


class Carrier(Protocol):
    """Sends messages and collects answers; no call waits for a device. All calls may raise the exceptions above."""

    @property
    def network(self) -> str:
        """Run ID; if it changes, earlier messages are lost."""

    @property
    def settling(self) -> bool:
        """Whether nodes may seem offline only because the network has just come back."""

    def nodes(self) -> set[int]:
        """The nodes that are online."""

    def greet(self, node: int) -> str:
        """Sends the experiment to a node, which answers with `Hello`. Like all senders, returns the message ID."""

    def send(self, node: int, job: Job) -> str:
        """Sends a job to a node, which answers with `TrainingReply`."""

    def ask(self, node: int, weights: Weights, kind: FeatureKind) -> str:
        """Asks a node for its features; it answers with `FeatureReply`."""

    def receive(self, messages: Collection[str]) -> list[Answer]:
        """The answers to these messages that have arrived; each is returned once."""
