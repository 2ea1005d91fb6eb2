"""The contract between a method, which decides, and an engine, which carries out its decisions.

A method sees no clock, process, socket or file. The engine (virtual time or real devices) calls the methods of `Method`
one at a time, in an order that depends only on the experiment and the events, and carries out what the method orders
through `Server`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from cabafl.state import State

Weights = npt.NDArray[np.float32]
"""One model as a flat vector. Shared by jobs, caches and the recorder: never change one in place."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FeatureKind = Literal["activations", "activation_counts", "labels"]
LossReason = Literal["crash", "left", "timeout", "rejected", "stale"]
Kind = Literal["synchronous", "asynchronous", "semi-asynchronous"]


class Parameters(BaseModel):
    """Base of a method's parameters: the keys of the ``[method]`` section besides ``name``.

    A pydantic model. Each field gives a key its type, range, default and description. Unknown keys and wrong types are
    rejected with a one-line error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def settled(self, devices: int, simulated: bool) -> Self:
        """These parameters with everything decided that depends on the fleet; called once, before the run.

        Args:
            devices: Number of devices of the fleet.
            simulated: False: they are real, and the fleet may change during the run.
        """
        return self


@dataclass(frozen=True, slots=True)
class Objective(State):
    """How a device trains for one job, where that differs from the ``[training]`` section."""

    epochs: int | None = None
    """Local epochs; None: `Server.epochs`. Computing time changes in proportion."""

    lr_scale: float = 1.0
    """Factor on ``training.learning_rate``."""

    prox: float = 0.0
    """Weight of the proximal term ``prox / 2 * |w - w_sent|^2`` in the local loss, over trainable entries."""

    report_loss: bool = False
    """Whether the device reports its training loss (`Upload.loss`). Otherwise the loss never leaves the device."""

    report_square: bool = False
    """Whether the device reports the mean squared loss of its samples (`Upload.square_loss`)."""

    hold: bool = False
    """Whether the trained model stays on the device until `Server.fetch`; `Method.on_ready` tells when it is there."""


PLAIN = Objective()
"""Training exactly as the ``[training]`` section says."""


@dataclass(slots=True)
class Job(State):
    """A model sent to a device for training."""

    number: int
    """Unique within the run, counted from 0 in dispatch order."""

    device: int
    """Device number, an index into `Server.sizes`."""

    slot: int
    """The number the method passed to `Server.dispatch`; the engine only records it."""

    version: int
    """`Server.version` at dispatch. ``server.version - job.version`` is the staleness."""

    weights: Weights
    """The model as it was sent."""

    objective: Objective = PLAIN
    """How the device trains, as the method said."""

    correction: Weights | None = None
    """What the device adds to every mini-batch gradient, if the method sent it."""

    schedule: float = 1.0
    """Factor of ``training.schedule`` on the learning rate when the job was sent."""


@dataclass(slots=True)
class Upload:
    """A trained model.

    The engine has already checked it: it has the shape of ``job.weights``, all its numbers are finite and of sensible
    size, and it is not older than ``run.max_staleness``. An upload that fails a check is reported as a loss instead.
    With ``run.defence`` its update is cut to a multiple of the usual norm.
    """

    job: Job
    """The job this upload answers."""

    weights: Weights
    """The model after local training."""

    samples: int
    """Training samples of the device, as it claims; at least 1."""

    learning_rate: float
    """Learning rate of the job: ``training.learning_rate * job.objective.lr_scale * job.schedule``."""

    duration: float
    """Seconds from dispatch to arrival, on the engine's clock."""

    loss: float | None = None
    """Mean training loss over the last epoch; None unless `Objective.report_loss` was set."""

    square_loss: float | None = None
    """Mean squared loss of a sample over the first epoch; None unless `Objective.report_square` was set."""

    steps: int = 1
    """Optimiser steps of the job, as the device claims; at least 1."""

    epochs: int = 1
    """Local epochs of the job, as the device claims: fewer than it was told after `Server.finish`."""


@dataclass(frozen=True)
class Needs:
    """What a method needs from devices besides trained models."""

    features: FeatureKind | None = None
    """Kind of feature vectors the method collects, if any."""

    training_loss: bool = False
    """Whether it asks for training losses or their squares. Not available with DP-SGD."""

    plain_sgd: bool = False
    """Whether it takes the change of a model for a sum of gradients, as only SGD with plain momentum makes it."""


class Random(Protocol):
    """A stream of random numbers for one purpose; see `Server.random`."""

    def below(self, n: int) -> int:
        """A uniform integer in [0, n)."""

    def uniform(self) -> float:
        """A uniform number in [0, 1)."""

    def distinct(self, n: int, k: int) -> list[int]:
        """k distinct integers below n in random order."""


class Idle(Protocol):
    """The set of idle devices: present, with training samples and without a job. Iteration order is arbitrary but
    repeats from run to run."""

    def __len__(self) -> int: ...

    def __contains__(self, device: int) -> bool: ...

    def __iter__(self) -> Iterator[int]: ...

    def array(self) -> Ints:
        """All idle devices, in iteration order. A view: valid until the next dispatch or cancellation."""

    def among(self, devices: Ints) -> npt.NDArray[np.bool_]:
        """A mask over ``devices``: which of them are idle."""

    def draw(self, random: Random, without: int | None = None) -> int:
        """Draws one idle device uniformly, ``without`` only if no other is idle. There must be an idle device."""

    def draw_many(self, random: Random, k: int, without: Collection[int] = ()) -> list[int]:
        """Draws up to k distinct idle devices uniformly, never one of ``without``; fewer if not enough are idle."""


class Server(Protocol):
    """What a method can read and order. The engine implements it and passes it to every call of the method."""

    @property
    def sizes(self) -> Ints:
        """Training samples per device, as they claim, shape (devices,). A device without samples is never idle. On real
        devices the number of a device may change between two jobs."""

    @property
    def slots(self) -> int:
        """How many devices may train at the same time. The method must keep to it; the engine does not enforce it."""

    @property
    def idle(self) -> Idle:
        """Devices that can be sent a job now. The sender of the upload being handled is already idle again."""

    @property
    def initial(self) -> Weights:
        """The initial model, version 0; shape (parameters,)."""

    @property
    def trainable(self) -> int:
        """Number of leading entries of the weights that are trainable. The rest are buffers, such as batch-norm
        statistics."""

    @property
    def epochs(self) -> int:
        """Local epochs of a job unless its objective says otherwise."""

    @property
    def momentum(self) -> float:
        """Momentum of the local optimiser, which starts from zero in every job."""

    @property
    def version(self) -> int:
        """Number of models published so far."""

    def random(self, purpose: str) -> Random:
        """The random stream for ``purpose``; the same stream on every call.

        Draws depend only on the experiment's seed, the purpose and the number of earlier draws, and continue correctly
        when a run resumes. Use this for all randomness.
        """

    def dispatch(
        self,
        device: int,
        weights: Weights,
        slot: int = 0,
        objective: Objective = PLAIN,
        correction: Weights | None = None,
    ) -> int | None:
        """Sends a model to an idle device for training.

        Exactly one `Method.on_upload` or `Method.on_loss` follows, unless the job is cancelled or the run ends first.

        Args:
            device: An idle device. It is not idle again before the job ends.
            weights: The model to train.
            slot: Any whole number; it comes back as `Job.slot` and appears in the records.
            objective: How the device trains.
            correction: A vector like ``weights``, which the device adds to every mini-batch gradient, before momentum.
                Its entries for buffers have no effect. It travels as one more model.

        Returns:
            The job's number, or None without sending anything once ``run.max_dispatches`` jobs have been sent.

        Raises:
            RuntimeError: If the device is not idle.
        """

    def cancel(self, job: int) -> None:
        """Gives up a job: its device is idle at once, and the method never hears of the job again.

        A job that has already ended is ignored. The result of a held job is dropped where it is: nothing travels.
        """

    def finish(self, job: int) -> None:
        """Tells a device to stop after the epoch it is in, at least the first, and to upload what it has.

        `Upload.epochs` tells how many epochs it did. A job that has already ended, or is ready, is ignored.
        """

    def fetch(self, job: int) -> None:
        """Lets a device upload the result of a job that it holds (`Objective.hold`, `Method.on_ready`).

        A job that has already ended, or was fetched before, is ignored.

        Raises:
            RuntimeError: If the job is not ready.
        """

    def publish(self, weights: Weights, /, **facts: Any) -> None:
        """Makes ``weights`` the global model and increases `version` by 1.

        Raises an error that ends a simulation if ``weights`` has another shape than `initial`, or numbers that are not
        finite.

        Args:
            weights: The new global model, which evaluations use from now on.
            **facts: JSON values recorded with the event (aggregation weights, devices, ...). ``time``, ``event`` and
                ``version`` are reserved names.
        """

    def collect_features(
        self, weights: Weights, kind: FeatureKind, timeout: float | None = None, instant: bool = False
    ) -> None:
        """Asks every device that is present for its feature vector; one `Method.on_features` follows.

        Devices answer alongside training, so they stay idle or busy as they are. Start only one collection at a time.

        Args:
            weights: The model whose activations are the features.
            kind: What a feature vector contains; the same as in `Method.needs`.
            timeout: Seconds after which missing answers are given up; None: wait for all.
            instant: In a simulation, whether answers take no time.
        """

    def set_timer(self, delay: float, name: str) -> None:
        """Calls `Method.on_timer` with ``name`` after ``delay`` seconds. Timers cannot be cancelled; use a name that
        tells an outdated timer apart."""

    def note(self, kind: str, /, **facts: Any) -> None:
        """Records a decision as an event of this kind. ``facts`` are JSON values; ``time`` and ``event`` are reserved
        names."""


class Method(State):
    """Base class of all methods.

    A subclass sets `name`, `kind` and `paper`, and implements `start`, `on_upload` and `on_loss`. The engine calls one
    of the ``on_...`` methods at a time.

    All attributes except ``parameters`` are the method's state, which checkpoints store. They may hold numbers,
    strings, None, NumPy arrays, torch tensors, lists, tuples, dictionaries, and instances of subclasses of
    `cabafl.state.State`.

    Args:
        parameters: An instance of the class's `Parameters`, already validated.
    """

    name: ClassVar[str]
    """Short name, as in ``method.name``."""

    kind: ClassVar[Kind]
    """Which uploads the server waits for: all of a round, none, or some."""

    paper: ClassVar[str]
    """The publication, in one line."""

    Parameters: ClassVar[type[Parameters]] = Parameters
    """The class that validates the keys of the ``[method]`` section; by default no keys are accepted."""

    def __init__(self, parameters: Any = None) -> None:
        self.parameters = parameters

    def needs(self) -> Needs:
        """What devices must report besides trained models. Called before the run, to check the experiment."""
        return Needs()

    def check(self, slots: int) -> None:
        """Checks the parameters against the number of slots before the run.

        Raises:
            ValueError: If they do not fit, with a one-line message that names key, value and accepted values.
        """

    def start(self, server: Server) -> None:
        """Called once at time 0: dispatch the first models, or collect features first."""
        raise NotImplementedError

    def on_upload(self, server: Server, upload: Upload) -> None:
        """Called when a trained model has arrived and passed all checks. Its device is idle again."""
        raise NotImplementedError

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        """Called when a job has ended without a usable upload. A late answer to it is ignored.

        Args:
            server: The server.
            job: The lost job.
            reason: ``crash``: the device failed; ``left``: it went offline; ``timeout``: ``run.slot_timeout`` has
                passed; ``rejected``: the upload has a wrong shape, contains numbers that are not finite or absurdly
                large, or exceeds ``deploy.norm_bound``; ``stale``: it is older than ``run.max_staleness``. After
                ``left`` and ``timeout`` the device is not idle yet; `on_idle` follows when it is.
        """
        raise NotImplementedError

    def on_ready(self, server: Server, job: Job) -> None:
        """Called when a device has trained a job with `Objective.hold`. The device is not idle before the method has
        fetched the result and it has arrived, or has cancelled the job, or the job is lost."""
        raise NotImplementedError

    def on_features(self, server: Server, features: npt.NDArray[np.float32]) -> None:
        """Called when a feature collection is complete.

        Args:
            server: The server.
            features: Shape (devices, feature length). Devices that did not answer have zero rows. The array stays valid
                and unchanged until the next collection, which may overwrite it.
        """

    def on_timer(self, server: Server, name: str) -> None:
        """Called when a timer set with `Server.set_timer` expires."""

    def on_idle(self, server: Server, device: int) -> None:
        """Called when a device becomes idle other than through `on_upload`, `on_loss` or `Server.cancel`: it came
        online, or it is done with a job that timed out. A slot may have been waiting for it."""

    def on_end(self, server: Server) -> None:
        """Called once when the run is over. A model published here is still evaluated; dispatches have no effect."""
