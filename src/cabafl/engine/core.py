"""The part of both engines that does not depend on the clock.

It counts versions, costs and idle devices, checks every upload by the rules that all methods share, and emits the
events. `engine.virtual` adds virtual time and simulated devices, `engine.wall` the wall clock and real devices.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy import ndarray

from cabafl.engine.average import AverageRule, RunningAverage
from cabafl.engine.best import BestModel
from cabafl.engine.changes import Value
from cabafl.engine.defence import AUTOMATIC, LARGEST_UPLOAD, Defaults, Defence, DefenceRules
from cabafl.engine.handed import (
    LARGEST_NUMBER,
    MODEL_SQUARE,
    amount,
    check_attributes,
    check_correction,
    finite_vector,
    usable_objective,
    usable_vector,
    whole,
)
from cabafl.engine.idle import IdleSet
from cabafl.engine.ledger import Ledger
from cabafl.engine.outbox import Outbox, PendingScore
from cabafl.engine.schedule import Schedule
from cabafl.execution.base import Executor
from cabafl.learning.builtin_tasks import Classification
from cabafl.learning.learning_task import TaskMetric
from cabafl.learning.panel import Panel
from cabafl.learning.task import TrainingResult
from cabafl.methods.base import PLAIN, FeatureKind, Ints, Job, LossReason, Method, Objective, Upload, Weights
from cabafl.recording.events import Event, Lost, Noted, Published, Uploaded
from cabafl.rng import Stream, seed64
from cabafl.state import State, attributes

FOREVER = float("inf")
FEATURE_BYTES = 4  # per number of a feature vector: float32, as `deployment.wire` sends it
_UPLOAD_SQUARE = LARGEST_UPLOAD**2


@dataclass(frozen=True)
class Limits(State):
    """When a run ends, when it is evaluated, and which uploads are accepted; seconds of the engine's clock."""

    seconds: float | None = 1200.0
    max_dispatches: int | None = None
    evaluate_every: float = 20.0
    evaluate_versions: int | None = None
    slot_timeout: Literal["auto"] | float | None = None  # auto: none in virtual time; see `engine.wall`
    max_staleness: int | None = None


@dataclass(frozen=True)
class EngineSetup:
    """What an engine of either clock needs for a run."""

    method: Method
    executor: Executor
    initial: Weights
    emit: Callable[[Event], None]
    seed: int
    slots: int
    limits: Limits
    trainable: int
    epochs: int = 1
    learning_rate: float = 0.01
    momentum: float = 0.0
    defence: DefenceRules = AUTOMATIC
    average: AverageRule | None = None
    keep_best: bool = False
    panel: Panel | None = None  # devices that are evaluated on their own samples
    schedule: Schedule | None = None  # None: the learning rate stays
    metrics: tuple[TaskMetric, ...] = tuple(Classification().metrics()[:1])  # the first is the one of the run


@dataclass
class Flight(Job):
    """A job that was dispatched and has not ended. What most jobs never change is an attribute of the class until it
    changes: 1 % of an event (`cabafl bench engine`)."""

    started: float = 0.0
    abandoned: bool = field(default=False, init=False)  # given up by the server, but its device is still busy with it
    finishing: bool = field(default=False, init=False)  # the device was told to stop after the running epoch
    ready: bool = field(default=False, init=False)  # the device has trained it and holds the result
    fetched: float | None = field(default=None, init=False)  # when the server asked for the held result

    @property
    def held(self) -> bool:
        """Whether the device waits for the server to fetch the result."""
        return self.ready and self.fetched is None

    @property
    def since(self) -> float:
        """When the device was last told to do something."""
        return self.started if self.fetched is None else self.fetched


class Engine(ABC):
    """Drives one method, for which it is the `Server`. Subclasses send out the jobs and handle what happens."""

    clock: ClassVar[str]  # "virtual" or "wall": the clock of ``now``
    defaults: ClassVar[Defaults]  # of the defence
    flights: Mapping[int, Flight]  # by job number

    def __init__(self, setup: EngineSetup, claimed: Ints) -> None:
        """``claimed``: the number of samples that each device claims to have."""
        self.method = setup.method
        self.executor = setup.executor
        self.initial = setup.initial
        self.seed, self.slots = setup.seed, setup.slots
        self.limits = limits = setup.limits
        self.trainable = setup.trainable
        self.epochs = setup.epochs
        self.learning_rate = setup.learning_rate
        self.momentum = setup.momentum
        self.schedule = setup.schedule
        self.defence = Defence(setup.defence, self.defaults, self.note, setup.trainable, claimed)
        self.sizes = sizes = self.defence.bounded(claimed)
        self.metrics = setup.metrics
        self.panel = setup.panel
        best = BestModel(setup.metrics[0].more_is_better) if setup.keep_best else None
        self.outbox = Outbox(setup.executor, setup.emit, setup.metrics, best)
        self.idle = IdleSet(len(sizes), np.flatnonzero(sizes > 0))
        self.changes: dict[str, Value] = {}  # made by the operator, by key
        self.stopping: Literal["no", "soon", "now"] = "no"  # whether the operator ends the run
        self.now = 0.0
        self.version = 0
        self.model = setup.initial
        self._shape, self._type = setup.initial.shape, setup.initial.dtype
        self._usual = PLAIN  # the last objective that was found usable
        self._sound = setup.initial  # checked last, often sent next: 2 % of an event (`cabafl bench engine`)
        self.averaging = setup.average
        self.average = None if setup.average is None else RunningAverage(setup.initial)
        self.ledger = Ledger()
        self.selections = np.zeros(len(sizes), dtype=np.int64)
        self._streams: dict[str, Stream] = {}
        self._score: PendingScore | None = None  # of the last evaluated version
        self._row: tuple[float, int] | None = None  # time and version of the last evaluation
        # Memoryviews, for single entries: with the arrays an event takes 2 % longer (`cabafl bench engine`).
        self._size, self._selected = sizes.data, self.selections.data
        self._most = FOREVER if limits.max_dispatches is None else limits.max_dispatches
        self._bounded = True  # the norm of the global model is at most `defence.LARGEST_MODEL`

    @property
    def result(self) -> Weights:
        """The model that the user takes away: the averaged one, if there is one."""
        return self.model if self.average is None else self.average.model()

    @property
    def device_values(self) -> Sequence[float]:
        """The metric of each device of the panel in the last evaluation; empty without a panel."""
        return () if self._score is None else self._score.devices or ()

    # What a method orders

    def random(self, purpose: str) -> Stream:
        """See `Server.random`."""
        if purpose not in self._streams:
            self._streams[purpose] = Stream(seed64(self.seed, purpose))
        return self._streams[purpose]

    def publish(self, weights: Weights, /, **facts: Any) -> None:
        """See `Server.publish`. Raises `UnusableModel` for anything but a vector of finite numbers like ``initial``.

        The norm tells that at the price of one product: 0.4 of 9.5 µs where every upload publishes a small model
        (`cabafl bench engine`).
        """
        self._bounded = self._is_model(weights) and float(weights.dot(weights)) <= MODEL_SQUARE
        if not self._bounded:
            who = f"{self._at_once('publishes')}, as version {self.version + 1},"
            weights = finite_vector(weights, self.initial, who)
            self._bounded = float(weights.dot(weights)) <= MODEL_SQUARE
        self.model = self._sound = weights
        self.version += 1
        if self.average is not None:
            assert self.averaging is not None
            self.average.add(weights, self.averaging)
        (self.outbox.tell if facts else self.outbox.put)(Published(self.now, self.version, facts))
        every = self.limits.evaluate_versions
        if every is not None and self.version % every == 0:
            self._evaluate()

    def _is_model(self, weights: object) -> bool:
        """Whether it is a plain vector like ``initial``; its numbers are not looked at."""
        return type(weights) is ndarray and weights.shape == self._shape and weights.dtype is self._type

    def check_method(self) -> None:
        """Raises `UserError` if an attribute of the method cannot be stored in a checkpoint."""
        check_attributes(self.method)

    def _at_once(self, does: str) -> str:
        """The beginning of a line about what the method does now."""
        return f"method.name = {self.method.name!r}: {does} at {self.now:g} s"

    def note(self, kind: str, /, **facts: Any) -> None:
        """See `Server.note`."""
        self.outbox.tell(Noted(self.now, kind, facts))

    @abstractmethod
    def dispatch(
        self,
        device: int,
        weights: Weights,
        slot: int = 0,
        objective: Objective = PLAIN,
        correction: Weights | None = None,
    ) -> int | None:
        """See `Server.dispatch`."""

    @abstractmethod
    def cancel(self, job: int) -> None:
        """See `Server.cancel`."""

    def finish(self, job: int) -> None:
        """See `Server.finish`."""
        flight = self.flights.get(job)
        if flight is not None and not (flight.abandoned or flight.ready or flight.finishing):
            flight.finishing = True
            self.note("finish", job=flight.number, device=flight.device)
            self._order_finish(flight)

    @abstractmethod
    def _order_finish(self, flight: Any) -> None:
        """Tells the device of a job to stop after the running epoch."""

    def fetch(self, job: int) -> None:
        """See `Server.fetch`."""
        flight = self.flights.get(job)
        if flight is None or flight.abandoned or flight.fetched is not None:
            return
        if not flight.ready:
            raise RuntimeError(f"job {job} is not ready: only a result that a device holds can be fetched")
        flight.fetched = self.now
        self.note("fetch", job=flight.number, device=flight.device)
        self._order_fetch(flight)

    @abstractmethod
    def _order_fetch(self, flight: Any) -> None:
        """Tells the device of a job to upload the result that it holds."""

    def set_timer(self, delay: float, name: str) -> None:
        """See `Server.set_timer`."""
        self._ring_at(self.now + amount(delay, f"{self._at_once('sets a timer')} with delay"), name)

    @abstractmethod
    def _ring_at(self, time: float, name: str) -> None:
        """Has `Method.on_timer` called at this time."""

    @abstractmethod
    def collect_features(
        self, weights: Weights, kind: FeatureKind, timeout: float | None = None, instant: bool = False
    ) -> None:
        """See `Server.collect_features`."""

    # Accounting and shared rules

    def _usable(
        self, device: int, weights: Weights, slot: int, objective: Objective, correction: Weights | None
    ) -> tuple[int, Weights, int, Objective]:
        """What a method dispatches, in Python's numbers and as a plain vector: records and checkpoints need them so.
        Raises `UserError` for anything else."""
        who = self._at_once("dispatches")
        if not (type(device) is type(slot) is int and abs(slot) <= LARGEST_NUMBER):
            device, slot = whole(device, f"{who} with device"), whole(slot, f"{who} with slot")
        if objective is not PLAIN and objective is not self._usual:
            if objective != self._usual:
                self._usual = usable_objective(objective, self.method, who)
            objective = self._usual
        if weights is not self._sound and not self._is_model(weights):
            weights = usable_vector(weights, self.initial, who)
        if correction is not None:
            check_correction(correction, self.initial, self._at_once("sends"))
        return device, weights, slot, objective

    def _book_dispatch(self, device: int, weights: Weights, correction: Weights | None) -> int | None:
        """Counts a dispatch and returns the number of the new job; None if ``max_dispatches`` is reached."""
        ledger = self.ledger
        number = ledger.dispatches
        if number >= self._most:
            return None
        self.idle.remove(device)
        models = 1 if correction is None else 2
        ledger.dispatches = number + 1
        ledger.downloads += models
        ledger.bytes += models * weights.nbytes
        self._selected[device] += 1
        return number

    def _factor(self) -> float:
        """The factor of the schedule on the learning rate of a job that is sent now."""
        return 1.0 if self.schedule is None else self.schedule.at(self.now, self.version)

    def _take_upload(self, job: Job, trained: TrainingResult, seconds: float) -> None:
        """Passes an upload to the method, or reports a loss if the upload is rejected."""
        ledger = self.ledger
        weights, loss, square_loss, steps, epochs = trained
        ledger.uploads += 1
        ledger.bytes += weights.nbytes
        problem = self._problem(job, weights)
        if problem is not None:
            self._lose(job, problem)
            return
        if self.defence.update_clip is not None:
            weights = self.defence.upload(job, weights)
        self._sound = weights
        device, version = job.device, job.version
        staleness = self.version - version
        ledger.staleness[staleness] += 1
        self.outbox.put(Uploaded(self.now, job.number, device, job.slot, version, staleness))
        rate = self.learning_rate * job.objective.lr_scale * job.schedule
        size = self._size[device]
        self.method.on_upload(self, Upload(job, weights, size, rate, seconds, loss, square_loss, steps, epochs))

    def _problem(self, job: Job, weights: Weights) -> LossReason | None:
        """Why an upload is rejected; None if it is valid. The same rules for all methods."""
        if weights.shape != self._shape or not self._bounded:
            return "rejected"
        if not float(weights.dot(weights)) <= _UPLOAD_SQUARE:  # also if it is not a number
            return "rejected"
        stale = self.limits.max_staleness
        return "stale" if stale is not None and self.version - job.version > stale else None

    def _lose(self, job: Job, reason: LossReason) -> None:
        self.ledger.losses[reason] += 1
        if reason == "rejected":
            self.defence.count(job.device, reason)
        self.outbox.put(Lost(self.now, job.number, job.device, job.slot, reason))
        self.method.on_loss(self, job, reason)

    def _evaluate(self) -> None:
        if self._score is None or self._score.version != self.version:
            self._score = PendingScore(self.version)
            models = [self.model] if self.average is None else [self.model, self.average.model()]
            self._score.begin(self.executor, models, self.now, self.panel)
        self._row = self.now, self.version
        self._settle()
        self.outbox.put_row(self.now, self._score, self.ledger)

    def _settle(self) -> None:
        """Brings costs that grow with time up to date, before they are read."""
        self.ledger.idle_joules = 0.0  # real devices report theirs with the next job

    def conclude(self) -> None:
        """Ends the run: calls `Method.on_end`, evaluates the last version and emits all pending events."""
        self._end_method()
        if self._row != (self.now, self.version):
            self._evaluate()
        self.outbox.flush(wait=True)

    def _end_method(self) -> None:
        self.method.on_end(self)

    def flight_of(self, device: int) -> Flight | None:
        """The job that a device is working on, if any."""
        return next((flight for flight in self.flights.values() if flight.device == device), None)

    # State

    def state(self) -> dict[str, Any]:
        """The complete state, for a checkpoint; only valid between two steps. Waits for pending evaluations."""
        self.outbox.flush(wait=True)
        assert self._score is not None
        method = {name: value for name, value in attributes(self.method).items() if name != "parameters"}
        return {
            "now": self.now,
            "version": self.version,
            "model": self.model,
            "average": self.average,
            "best": self.outbox.best,
            "idle": self.idle,
            "ledger": self.ledger,
            "selections": self.selections,
            "streams": {purpose: stream.counter for purpose, stream in self._streams.items()},
            "score": (self._score.version, self._score.value, self._score.devices),
            "row": self._row,
            "defence": self.defence.state(),
            "method": method,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`."""
        self.now, self.version, self.model = state["now"], state["version"], state["model"]
        self.average, self.outbox.best = state["average"], state["best"]
        self.idle, self.ledger, self.selections = state["idle"], state["ledger"], state["selections"]
        self._selected = self.selections.data
        for purpose, counter in state["streams"].items():
            self.random(purpose).counter = counter
        self._score = PendingScore(*state["score"])
        self._row = state["row"]
        self.defence.restore(state["defence"])
        self._bounded = float(self.model.dot(self.model)) <= MODEL_SQUARE
        vars(self.method).update(state["method"])
