"""What the server needs from a network. Implemented for MQTT and for Flower; tests have their own."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from cabafl.deployment.log import Log
from cabafl.deployment.messages import News
from cabafl.methods.base import FeatureKind, Job, Weights


@dataclass(frozen=True)
class RunOnFleet:
    """What the network has to know of a run. ``weights`` is the length of a model, ``feature_width`` the number of
    features of each kind, ``ttl`` the seconds after which a job that was not delivered expires. Devices have
    numbers below ``devices``."""

    id: str
    greeting: str
    weights: int
    feature_width: Callable[[FeatureKind], int]
    ttl: float
    devices: int = 1000


class Delivery(NamedTuple):
    """News of a device and the receipt with which it is confirmed."""

    news: News
    receipt: Any = None


class Carrier(Protocol):
    """Sends messages to devices and hears from them. Only `receive` waits."""

    @property
    def steady(self) -> bool:
        """Whether the network is up and has been for long enough that every device could say it is here."""

    @property
    def connections(self) -> int:
        """Counts the connections to the network: after each one every device says again that it is here."""

    def removed(self) -> frozenset[int]:
        """Devices that no longer belong to the fleet."""

    def receive(self, timeout: float) -> list[Delivery]:
        """What has arrived; waits up to ``timeout`` seconds for the first. It may arrive again until it is
        confirmed."""

    def confirm(self, deliveries: Sequence[Delivery]) -> None:
        """These are on disk and need not arrive again."""

    def expect(self, jobs: Sequence[Job]) -> None:
        """An earlier process has sent these jobs: their answers may arrive."""

    def send(self, jobs: Sequence[Job]) -> None:
        """Sends each job to its device. A model that several of them share is sent once, where the network can."""

    def recall(self, job: Job) -> None:
        """Asks a device about a job: it answers again if it has answered, says so if it does not have it, and is silent
        while it works on it."""

    def cancel(self, device: int, job: int) -> None:
        """Tells a device to stop working on a job."""

    def finish(self, device: int, job: int) -> None:
        """Tells a device to end the training of a job after the running epoch. Where the network cannot, it goes on."""

    def fetch(self, device: int, job: int) -> None:
        """Tells a device to upload the result of a job that it holds."""

    def ask(self, query: int, weights: Weights, kind: FeatureKind, seconds: float) -> None:
        """Asks all devices for their features, once for all; the query expires after ``seconds``."""

    def tidy(self, jobs: Container[int]) -> None:
        """Frees what the network holds for jobs that are not in ``jobs``. Called every few seconds."""

    def wake(self) -> None:
        """Ends the waiting of `receive`; called by a signal handler."""

    def close(self, finished: bool) -> None:
        """Disconnects. ``finished``: the run is over, and devices forget it."""


class Network(Protocol):
    """A fleet that can be reached."""

    @property
    def devices(self) -> Sequence[int]:
        """The devices that belong to the fleet."""

    def open(self, run: RunOnFleet, log: Log) -> Carrier:
        """Connects; raises `UserError` if another server runs on this fleet."""
