"""The contract between a method, which decides, and an engine, which carries out.

A method sees no clock, no process, no socket and no file. Whatever drives it (virtual time or real devices) calls the
``on_...`` functions one at a time, in a fixed order, and carries out the orders given through `Server`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from cabafl.state import State

Weights = npt.NDArray[np.float32]  # one flat vector per model, never changed after it was handed over
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FeatureKind = Literal["activations", "activation_counts", "labels"]
LossReason = Literal["crash", "left", "timeout", "rejected", "stale"]
Kind = Literal["synchronous", "asynchronous", "semi-asynchronous"]


class Parameters(BaseModel):
    """A method's own keys of the ``[method]`` section."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


@dataclass(frozen=True, slots=True)
class Objective(State):
    """How a device trains where it differs from the experiment's ``[training]`` section."""

    epochs: int | None = None
    lr_scale: float = 1.0
    prox: float = 0.0  # weight of (prox / 2) * |w - dispatched|^2 in the local loss
    report_loss: bool = False  # the device also tells its mean training loss over the last epoch


PLAIN = Objective()


@dataclass(slots=True)
class Job(State):
    """A model on its way: what was sent to whom. ``slot`` is a number of the method's own choice."""

    number: int
    device: int
    slot: int
    version: int
    weights: Weights
    objective: Objective = PLAIN


@dataclass(slots=True)
class Upload:
    """What came back: already checked by the engine (layout, finite numbers)."""

    job: Job
    weights: Weights
    samples: int
    learning_rate: float
    duration: float
    loss: float | None = None  # mean training loss over the last epoch, where the objective asks for it


@dataclass(frozen=True)
class Needs:
    """What a method asks of the devices beside trained models."""

    features: FeatureKind | None = None
    training_loss: bool = False


class Random(Protocol):
    """A stream of draws of its own for one purpose."""

    def below(self, n: int) -> int:
        """A uniform integer in [0, n)."""

    def uniform(self) -> float:
        """A uniform number in [0, 1)."""

    def distinct(self, n: int, k: int) -> list[int]:
        """k distinct integers below n in random order."""


class Idle(Protocol):
    """The devices that could be sent a model now."""

    def __len__(self) -> int: ...

    def __contains__(self, device: int) -> bool: ...

    def __iter__(self) -> Iterator[int]: ...

    def array(self) -> Ints:
        """All idle devices, in no particular order; valid until the next order is given."""

    def among(self, devices: Ints) -> npt.NDArray[np.bool_]:
        """Which of ``devices`` are idle."""

    def draw(self, random: Random, without: int | None = None) -> int:
        """One idle device at random; ``without`` only when there is no other."""

    def draw_many(self, random: Random, k: int, without: Collection[int] = ()) -> list[int]:
        """Up to k distinct idle devices at random, none of ``without``."""


class Server(Protocol):
    """What a method may know and order."""

    @property
    def sizes(self) -> Ints:
        """Training samples per device."""

    @property
    def slots(self) -> int:
        """How many devices may train at the same time."""

    @property
    def idle(self) -> Idle:
        """Devices without a job. A device whose upload is being handled is already among them."""

    @property
    def initial(self) -> Weights:
        """The model of version 0."""

    @property
    def trainable(self) -> int:
        """How many leading entries of the weights are trainable; the rest are buffers (batch-norm statistics)."""

    @property
    def epochs(self) -> int:
        """Local epochs of a job unless its objective says otherwise."""

    @property
    def version(self) -> int:
        """How many models were published."""

    def random(self, purpose: str) -> Random:
        """The stream of draws for one purpose; the same object every time."""

    def dispatch(self, device: int, weights: Weights, slot: int = 0, objective: Objective = PLAIN) -> int | None:
        """Sends a model to an idle device for training; the number of the job, or None: the run takes no more jobs."""

    def cancel(self, job: int) -> None:
        """Forgets a job: its result is never used and its device is idle at once."""

    def publish(self, weights: Weights, /, **facts: Any) -> None:
        """Declares a new global model: version + 1. ``facts`` (weights of the mean, ...) are recorded with it."""

    def collect_features(
        self, weights: Weights, kind: FeatureKind, timeout: float | None = None, instant: bool = False
    ) -> None:
        """Asks every device for its feature vector under ``weights``; the answer is one `Method.on_features`."""

    def set_timer(self, delay: float, name: str) -> None:
        """Calls `Method.on_timer` after ``delay`` seconds."""

    def note(self, kind: str, /, **facts: Any) -> None:
        """Records a decision worth knowing later."""


class Method(State):
    """Base of all methods. Its attributes are its state: a checkpoint stores all of them but ``parameters``."""

    name: ClassVar[str]
    kind: ClassVar[Kind]
    paper: ClassVar[str]
    Parameters: ClassVar[type[Parameters]] = Parameters

    def __init__(self, parameters: Any = None) -> None:
        self.parameters = parameters

    def needs(self) -> Needs:
        """What the devices have to tell, so that it can be checked and announced before a run."""
        return Needs()

    def check(self, slots: int) -> None:
        """Before a run: a ValueError, in one line, if the parameters do not fit so many devices training at a time."""

    def start(self, server: Server) -> None:
        """Time 0: dispatch the first models, or collect features first."""
        raise NotImplementedError

    def on_upload(self, server: Server, upload: Upload) -> None:
        """A trained model came back."""
        raise NotImplementedError

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """A job ended without a usable upload; a late answer to it will be ignored."""
        raise NotImplementedError

    def on_features(self, server: Server, features: npt.NDArray[np.float32]) -> None:
        """A collection is complete: one row per device; rows of devices that did not answer are zero.

        The table stays as it is until the next collection, which may overwrite it.
        """

    def on_timer(self, server: Server, name: str) -> None:
        """A timer set by the method ran out."""

    def on_idle(self, server: Server, device: int) -> None:
        """A device became idle outside of an upload or loss: it came back, or finished an abandoned job."""

    def on_end(self, server: Server) -> None:
        """The run is over. What is published here is evaluated; there are no more dispatches."""
