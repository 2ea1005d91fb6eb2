"""The engine on the wall clock: it handles inputs and produces orders for the devices.

It uses no network: `deployment.server` turns messages into inputs and orders into messages. Timers, timeouts and
evaluations happen when the first input after their time arrives, in the order of their times.
"""

import heapq
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch

from cabafl.engine.core import FEATURE_BYTES, FOREVER, Engine, EngineSetup, Flight
from cabafl.engine.idle import IdleSet
from cabafl.engine.inputs import Arrived, Failed, Gathered, Input, Joined, Left, Passed, Started
from cabafl.methods.base import PLAIN, FeatureKind, Ints, Job, LossReason, Objective, Weights
from cabafl.recording.events import Collection, Dispatched, Lost
from cabafl.state import State

COLLECTION_TIMEOUT = 600.0  # default, in seconds


class Alarm(IntEnum):
    """What happens at a scheduled time."""

    TIMEOUT = 0  # a job is given up
    TIMER = 1  # set by the method
    EVALUATE = 2


@dataclass(frozen=True)
class Question(State):
    """A feature collection under way."""

    weights: Weights
    kind: FeatureKind
    asked: Ints  # devices
    until: float  # devices that have not answered by then are left out


@dataclass(frozen=True)
class Orders:
    """What the method has ordered since the last `take_orders`."""

    jobs: list[int]  # to send
    ask: bool  # whether to send the feature query


class WallEngine(Engine):
    """Runs one method on real devices. ``devices`` is the number of devices that may ever join; one that has not joined
    has no samples and is not idle. ``norm_bound`` rejects uploads that moved further than this."""

    clock = "wall"

    def __init__(self, setup: EngineSetup, devices: int, norm_bound: float | None = None) -> None:
        super().__init__(setup, np.zeros(devices, dtype=np.int64))
        self.norm_bound = norm_bound
        self.present: set[int] = set()
        self.flights: dict[int, Flight] = {}
        self.question: Question | None = None
        self.alarms: list[tuple[float, int, int, Any]] = []
        self._ordered: list[int] = []  # jobs not taken by `take_orders` yet
        self._ask = False
        self.durations: dict[int, float] = {}  # seconds from dispatch to upload of each device's last job
        self._serial = 0
        self._features = np.zeros((devices, 0), dtype=np.float32)

    # Orders of the method

    def dispatch(self, device: int, weights: Weights, slot: int = 0, objective: Objective = PLAIN) -> int | None:
        """See `Server.dispatch`."""
        number = self._book_dispatch(device, weights)
        if number is None:
            return None
        self.flights[number] = Flight(number, device, slot, self.version, weights, objective, self.now)
        if self.limits.slot_timeout is not None:
            self._set_alarm(self.now + self.limits.slot_timeout, Alarm.TIMEOUT, number)
        self._ordered.append(number)
        due = self.now + self.durations.get(device, 0.0)
        self.outbox.put(Dispatched(self.now, number, device, slot, self.version, due))
        return number

    def cancel(self, job: int) -> None:
        """See `Server.cancel`. The device finishes the old job before it starts a new one."""
        flight = self.flights.pop(job, None)
        if flight is None:
            return
        self.ledger.losses["cancelled"] += 1
        self.outbox.put(Lost(self.now, job, flight.device, flight.slot, "cancelled"))
        self.idle.add(flight.device)

    def set_timer(self, delay: float, name: str) -> None:
        """See `Server.set_timer`."""
        self._set_alarm(self.now + delay, Alarm.TIMER, name)

    def collect_features(
        self, weights: Weights, kind: FeatureKind, timeout: float | None = None, instant: bool = False
    ) -> None:
        """See `Server.collect_features`. ``instant`` has no effect here; there is always a timeout."""
        timeout = timeout or self.limits.slot_timeout or COLLECTION_TIMEOUT
        asked = np.array(sorted(self.present), dtype=np.int64)
        self.ledger.feature_downloads += len(asked)
        self.ledger.bytes += len(asked) * weights.nbytes
        self.question = Question(weights, kind, asked, self.now + timeout)
        self._ask = True
        self.outbox.put(Collection(self.now, "start", len(asked), 0))

    def take_orders(self) -> Orders:
        """Returns each order once. A checkpoint does not include orders: after a restart they follow from ``flights``
        and ``question``."""
        orders = Orders(self._ordered, self._ask)
        self._ordered, self._ask = [], False
        return orders

    # Inputs

    def handle(self, given: Input) -> None:
        """Handles one input, after everything that was due before it."""
        self._ring_until(given.time)
        self.now = max(self.now, given.time)
        if isinstance(given, Started):
            # The order in which devices joined is arbitrary: sort them, as in a simulation, so that draws agree.
            self.idle = IdleSet(len(self.sizes), np.array(sorted(self.idle), dtype=np.int64))
            self._evaluate()
            self._set_evaluation(1)
            self.method.start(self)
        elif isinstance(given, Joined):
            self._join(given)
        elif isinstance(given, Left):
            self._leave(given.device)
        elif isinstance(given, Arrived):
            self._arrive(given)
        elif isinstance(given, Failed):
            self._fail(given.job, given.reason)
        elif isinstance(given, Gathered):
            self._end_question(given)
        else:
            assert isinstance(given, Passed)
        self.outbox.flush()

    def pass_time(self, now: float) -> None:
        """Handles everything that is due until ``now``."""
        self.handle(Passed(now))

    @property
    def started(self) -> bool:
        """Whether the run has started."""
        return self._score is not None

    @property
    def over(self) -> bool:
        """Whether the time limit is reached, or all ``max_dispatches`` jobs have been answered, lost or given up."""
        if self.limits.seconds is not None and self.now >= self.limits.seconds:
            return True
        return self.ledger.dispatches >= self._most and all(flight.abandoned for flight in self.flights.values())

    def next_alarm(self) -> float:
        """Time of the next alarm; infinite if there is none."""
        return self.alarms[0][0] if self.alarms else FOREVER

    def _set_alarm(self, time: float, kind: Alarm, what: Any) -> None:
        self._serial += 1
        heapq.heappush(self.alarms, (time, self._serial, int(kind), what))

    def _set_evaluation(self, number: int) -> None:
        if self.limits.evaluate_versions is None:
            self._set_alarm(self.limits.evaluate_every * number, Alarm.EVALUATE, number)

    def _ring_until(self, now: float) -> None:
        while self.alarms and self.alarms[0][0] <= now:
            time, _, kind, what = heapq.heappop(self.alarms)
            if self.limits.seconds is not None and time > self.limits.seconds:
                continue
            self.now = max(self.now, time)
            if kind == Alarm.TIMEOUT:
                self._time_out(what)
            elif kind == Alarm.TIMER:
                self.method.on_timer(self, what)
            else:
                self._evaluate()
                self._set_evaluation(what + 1)

    def _join(self, given: Joined) -> None:
        """A device that joins again while it has a job has lost that job."""
        device = given.device
        self._lose_job_of(device, "crash")
        self.sizes[device] = given.samples
        self.present.add(device)
        if given.samples > 0 and device not in self.idle:
            self.idle.add(device)
            if self.started:
                self.method.on_idle(self, device)

    def _leave(self, device: int) -> None:
        self.present.discard(device)
        if device in self.idle:
            self.idle.remove(device)
        else:
            self._lose_job_of(device, "left")

    def _lose_job_of(self, device: int, reason: LossReason) -> None:
        """Counts the job of a device, if it has one, as lost. The device does not become idle."""
        flight = self.flight_of(device)
        if flight is not None:
            del self.flights[flight.number]
            if not flight.abandoned:
                self._lose(flight, reason)

    def _time_out(self, number: int) -> None:
        flight = self.flights.get(number)
        if flight is not None and not flight.abandoned:
            flight.abandoned = True
            self._lose(flight, "timeout")

    def _arrive(self, given: Arrived) -> None:
        flight = self.flights.pop(given.job, None)
        if flight is None:
            return  # already counted as cancelled or lost
        self.ledger.joules += given.joules
        duration = self.durations[flight.device] = self.now - flight.started
        self.note("answer", job=given.job, seconds=given.seconds, joules=given.joules)
        self.idle.add(flight.device)
        if flight.abandoned:
            self.method.on_idle(self, flight.device)
        else:
            self._take_upload(flight, given.weights, duration, given.loss)

    def _problem(self, job: Job, weights: Weights) -> LossReason | None:
        """Adds the norm bound to the shared rules."""
        problem = super()._problem(job, weights)
        if problem is None and self.norm_bound is not None:
            moved = float(np.linalg.norm(weights.astype(np.float64) - job.weights))
            return "rejected" if moved > self.norm_bound else None
        return problem

    def _fail(self, number: int, reason: LossReason) -> None:
        flight = self.flights.pop(number, None)
        if flight is None:
            return
        if flight.device in self.present:
            self.idle.add(flight.device)
        if not flight.abandoned:
            self._lose(flight, reason)
        elif flight.device in self.present:
            self.method.on_idle(self, flight.device)

    def _end_question(self, given: Gathered) -> None:
        assert self.question is not None
        asked, self.question = self.question.asked, None
        count = int(given.answered.sum())
        if self._features.shape != given.rows.shape:
            self._features = torch.zeros(given.rows.shape).numpy()  # aligned, so that sums are reproducible
        self._features[...] = given.rows
        self._features[~given.answered] = 0.0
        self.ledger.feature_uploads += count
        self.ledger.bytes += count * given.rows.shape[1] * FEATURE_BYTES
        self.outbox.put(Collection(self.now, "end", count, len(asked) - count))
        self.method.on_features(self, self._features)

    # State

    def state(self) -> dict[str, Any]:
        """See `Engine.state`; also includes devices, jobs under way and alarms."""
        return super().state() | {
            "sizes": self.sizes,
            "present": sorted(self.present),
            "flights": self.flights,
            "question": self.question,
            "alarms": self.alarms,
            "durations": self.durations,
            "serial": self._serial,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        super().restore(state)
        self.sizes[:] = state["sizes"]
        self.present = set(state["present"])
        self.flights, self.question = state["flights"], state["question"]
        self.alarms = list(state["alarms"])
        self.durations = state["durations"]
        self._serial = state["serial"]
