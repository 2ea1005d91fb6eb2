"""The engine in virtual time: it keeps the clock and the devices, and carries out what the method decides.

Events are served by (time, rank, serial): equal times in the order they were scheduled, evaluations last, so that an
evaluation at time t sees everything that happened at t. How long a job will take, and whether its result will be used,
is known when it is dispatched: results nobody will use are never computed.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from cabafl.execution.base import EvaluateJob, Executor, FeatureJob, TrainJob
from cabafl.fleet.devices import Fleet
from cabafl.methods.base import PLAIN, FeatureKind, Ints, Job, LossReason, Method, Objective, Upload, Weights
from cabafl.recording.events import Collection, Dispatched, Evaluated, Event, Lost, Noted, Published, Uploaded
from cabafl.rng import Stream, seed64
from cabafl.simulation.idle import IdleSet
from cabafl.simulation.ledger import Ledger

FEATURE_BYTES = 8  # per number of a feature vector on the wire


@dataclass(frozen=True)
class Limits:
    """When the run ends, when it is looked at, and the rules all methods share."""

    virtual_time: float | None = 1200.0
    max_dispatches: int | None = None
    evaluate_every: float = 20.0
    evaluate_aggregations: int | None = None
    slot_timeout: float | None = None
    max_staleness: int | None = None


class Kind(IntEnum):
    """What an entry of the event queue is."""

    FINISH = 0  # a device ends a job
    TIMEOUT = 1  # the server gives a job up
    FEATURES = 2
    TIMER = 3
    EVALUATE = 4


@dataclass(slots=True)
class Flight:
    """A job in flight, with what the engine needs to know about it."""

    job: Job
    started: float
    seconds: float
    joules: float
    ticket: int | None
    abandoned: bool = False  # given up by the server; the device is still busy with it


@dataclass(slots=True)
class Gathering:
    """A feature collection under way."""

    tickets: list[int]
    missing: Ints


class Simulation:
    """Drives one method over one fleet. It is the `Server` its method talks to."""

    def __init__(
        self,
        method: Method,
        fleet: Fleet,
        executor: Executor,
        initial: Weights,
        *,
        seed: int,
        slots: int,
        limits: Limits,
        parameters: int,
        epochs: int = 1,
        learning_rate: float = 0.01,
        emit: Callable[[Event], None],
    ) -> None:
        self.method = method
        self.fleet = fleet
        self.executor = executor
        self.initial = initial
        self.seed = seed
        self.slots = slots
        self.limits = limits
        self.parameters = parameters
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.emit = emit
        self.sizes = fleet.sizes
        self.idle = IdleSet(len(fleet), np.flatnonzero(fleet.sizes > 0))
        self.now = 0.0
        self.horizon = float("inf") if limits.virtual_time is None else limits.virtual_time
        self.version = 0
        self.model = initial
        self.ledger = Ledger()
        self.selections = np.zeros(len(fleet), dtype=np.int64)
        self.flights: dict[int, Flight] = {}
        self.queue: list[tuple[float, int, int, Kind, Any]] = []
        self._serial = 0
        self._streams: dict[str, Stream] = {}
        self._score: tuple[int, float, float] | None = None  # version, accuracy, loss of the last evaluation
        self._row: tuple[float, int] | None = None  # time and version of the last row written

    # The run

    def run(self) -> None:
        """From time 0 to the end; ends with an evaluation."""
        self._evaluate()
        self._schedule_evaluation(1)
        self.method.start(self)
        while not self._finished():
            if not self.queue or self.queue[0][0] > self.horizon:
                self.now = self.horizon if self.horizon < float("inf") else self.now
                break
            self.now, _, _, kind, what = heapq.heappop(self.queue)
            self._handle(kind, what)
        if self._row != (self.now, self.version):
            self._evaluate()

    def _schedule_evaluation(self, number: int) -> None:
        if self.limits.evaluate_aggregations is None:
            self._schedule_at(self.limits.evaluate_every * number, Kind.EVALUATE, number)

    def _finished(self) -> bool:
        """After the last allowed dispatch, the run lasts until all jobs are back."""
        return self._exhausted() and not any(not flight.abandoned for flight in self.flights.values())

    def _exhausted(self) -> bool:
        return self.limits.max_dispatches is not None and self.ledger.dispatches >= self.limits.max_dispatches

    def _handle(self, kind: Kind, what: Any) -> None:
        if kind is Kind.FINISH:
            self._finish(what)
        elif kind is Kind.TIMEOUT:
            self._time_out(what)
        elif kind is Kind.EVALUATE:
            self._evaluate()
            self._schedule_evaluation(what + 1)
        elif kind is Kind.FEATURES:
            self._features(what)
        else:
            self.method.on_timer(self, what)

    def _schedule_at(self, time: float, kind: Kind, what: Any) -> None:
        self._serial += 1
        rank = 1 if kind is Kind.EVALUATE else 0
        heapq.heappush(self.queue, (time, rank, self._serial, kind, what))

    # Orders of the method

    def random(self, purpose: str) -> Stream:
        """See `Server.random`."""
        if purpose not in self._streams:
            self._streams[purpose] = Stream(seed64(self.seed, purpose))
        return self._streams[purpose]

    def dispatch(self, device: int, weights: Weights, tag: int = 0, objective: Objective = PLAIN) -> int:
        """See `Server.dispatch`. Past ``max_dispatches`` nothing is sent any more."""
        if self._exhausted():
            return -1
        self.idle.remove(device)
        ledger = self.ledger
        number = ledger.dispatches
        ledger.dispatches += 1
        ledger.downloads += 1
        ledger.bytes += weights.nbytes
        self.selections[device] += 1
        work = 1.0 if objective.epochs is None else objective.epochs / self.epochs
        seconds = self.fleet.job_seconds(device, work)
        job = Job(number, device, tag, self.version, weights, objective)
        flight = Flight(job, self.now, seconds, self.fleet.job_joules(device, work), None)
        self.flights[number] = flight
        in_time = self._schedule_end(flight)
        if in_time and self.now + seconds <= self.horizon:
            flight.ticket = self.executor.submit(
                TrainJob(number, device, weights, objective.epochs, objective.lr_scale, objective.prox)
            )
        self.emit(Dispatched(self.now, number, device, tag, self.version, self.now + seconds))
        return number

    def _schedule_end(self, flight: Flight) -> bool:
        timeout = self.limits.slot_timeout
        in_time = timeout is None or flight.seconds <= timeout
        if timeout is not None and not in_time:
            self._schedule_at(self.now + timeout, Kind.TIMEOUT, flight.job.number)
        if flight.seconds != float("inf"):
            self._schedule_at(self.now + flight.seconds, Kind.FINISH, flight.job.number)
        return in_time

    def cancel(self, job: int) -> None:
        """See `Server.cancel`. The energy spent so far stays spent."""
        flight = self.flights.pop(job)
        if flight.ticket is not None:
            self.executor.discard(flight.ticket)
        self.ledger.joules += flight.joules * min(1.0, (self.now - flight.started) / flight.seconds)
        self.ledger.losses["cancelled"] += 1
        self.idle.add(flight.job.device)
        self.emit(Lost(self.now, job, flight.job.device, flight.job.tag, "cancelled"))

    def publish(self, weights: Weights, /, **facts: Any) -> None:
        """See `Server.publish`."""
        self.model = weights
        self.version += 1
        self.emit(Published(self.now, self.version, facts))
        every = self.limits.evaluate_aggregations
        if every is not None and self.version % every == 0:
            self._evaluate()

    def set_timer(self, delay: float, name: str) -> None:
        """See `Server.set_timer`."""
        self._schedule_at(self.now + delay, Kind.TIMER, name)

    def note(self, kind: str, /, **facts: Any) -> None:
        """See `Server.note`."""
        self.emit(Noted(self.now, kind, facts))

    def collect_features(
        self, weights: Weights, kind: FeatureKind, timeout: float | None = None, instant: bool = False
    ) -> None:
        """See `Server.collect_features`. Devices answer beside their training; one event marks the last answer."""
        asked = np.flatnonzero(self.sizes > 0)
        self.ledger.feature_downloads += len(asked)
        self.ledger.bytes += len(asked) * weights.nbytes
        seconds = np.zeros(len(asked)) if instant else self.fleet.collection_seconds()[asked]
        allowed = float("inf") if timeout is None else timeout
        missing = asked[seconds > allowed]
        delay = min(float(seconds.max()), allowed)
        tickets = []
        if self.now + delay <= self.horizon:
            tickets = [self.executor.submit(FeatureJob(weights, kind, d)) for d in self.executor.feature_chunks]
        self.emit(Collection(self.now, "start", len(asked), 0))
        self._schedule_at(self.now + delay, Kind.FEATURES, Gathering(tickets, missing))

    # Events

    def _finish(self, number: int) -> None:
        flight = self.flights.pop(number, None)
        if flight is None:
            return  # cancelled meanwhile
        device = flight.job.device
        self.ledger.joules += flight.joules
        self.idle.add(device)
        if flight.abandoned:
            self.method.on_idle(self, device)
            return
        assert flight.ticket is not None
        weights = self.executor.result(flight.ticket)
        self.ledger.uploads += 1
        self.ledger.bytes += weights.nbytes
        problem = self._problem(flight.job, weights)
        if problem:
            self._lose(flight.job, problem)
            return
        job = flight.job
        staleness = self.version - job.version
        self.ledger.staleness[staleness] += 1
        self.emit(Uploaded(self.now, number, device, job.tag, job.version, staleness))
        rate = self.learning_rate * job.objective.lr_scale
        self.method.on_upload(self, Upload(job, weights, self.sizes.item(device), rate, flight.seconds))

    def _problem(self, job: Job, weights: Weights) -> LossReason | None:
        """The shared rules for what a method never gets to see."""
        if weights.shape != job.weights.shape or not np.isfinite(weights).all():
            return "rejected"
        stale = self.limits.max_staleness
        return "stale" if stale is not None and self.version - job.version > stale else None

    def _lose(self, job: Job, reason: LossReason) -> None:
        self.ledger.losses[reason] += 1
        self.emit(Lost(self.now, job.number, job.device, job.tag, reason))
        self.method.on_loss(self, job, reason)

    def _time_out(self, number: int) -> None:
        flight = self.flights.get(number)
        if flight is not None:
            flight.abandoned = True
            self._lose(flight.job, "timeout")

    def _features(self, gathering: Gathering) -> None:
        parts = [self.executor.result(ticket) for ticket in gathering.tickets]
        width = max(part.shape[1] for part in parts)
        rows = np.zeros((len(self.fleet), width), dtype=np.float32)
        for devices, part in zip(self.executor.feature_chunks, parts, strict=True):
            rows[devices.start : devices.stop, : part.shape[1]] = part
        rows[gathering.missing] = 0.0
        answered = int((self.sizes > 0).sum()) - len(gathering.missing)
        self.ledger.feature_uploads += answered
        self.ledger.bytes += answered * width * FEATURE_BYTES
        self.ledger.joules += float(self.fleet.collection_joules()[self.sizes > 0].sum())
        self.emit(Collection(self.now, "end", answered, len(gathering.missing)))
        self.method.on_features(self, rows)

    def _evaluate(self) -> None:
        if self._score is None or self._score[0] != self.version:
            tickets = [self.executor.submit(EvaluateJob(self.model, i)) for i in range(self.executor.evaluation_chunks)]
            scores = [self.executor.result(ticket) for ticket in tickets]
            samples = sum(score.samples for score in scores)
            correct = sum(score.correct for score in scores)
            self._score = self.version, correct / samples, sum(score.loss for score in scores) / samples
        _, accuracy, loss = self._score
        ledger = self.ledger
        self._row = self.now, self.version
        self.emit(
            Evaluated(
                self.now,
                self.version,
                accuracy,
                loss,
                ledger.downloads,
                ledger.uploads,
                ledger.feature_downloads,
                ledger.transfers,
                ledger.bytes,
                ledger.joules,
            )
        )
