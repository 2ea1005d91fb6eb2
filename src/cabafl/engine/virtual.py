"""The engine in virtual time: a queue of future events, and simulated devices.

Events are handled in the order (time, rank, serial): equal times in the order they were scheduled, evaluations last, so
that an evaluation at time t includes everything that happened at t. When a job is dispatched, its duration and whether
its result will be used are already known. Results that will not be used are never computed; all other jobs in flight
are computed in parallel while the clock waits for the earliest one.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cabafl.engine.core import FEATURE_BYTES, FOREVER, Engine, EngineSetup, Flight
from cabafl.engine.defence import SIMULATED
from cabafl.engine.idle import IdleMeter
from cabafl.execution.base import FeatureJob, Interrupt, TrainJob
from cabafl.fleet import FINE, Fate, Faults, Fleet
from cabafl.learning.task import TrainingResult
from cabafl.methods.base import PLAIN, FeatureKind, Ints, Objective, Weights
from cabafl.recording.events import Collection, Dispatched, Lost
from cabafl.state import State

AHEAD = 64  # feature chunks computed ahead; limits how many are in memory


class Kind(IntEnum):
    """Kinds of entries in the event queue."""

    FINISH = 0  # a device finishes a job
    TIMEOUT = 1  # the server gives up a job
    FEATURES = 2
    TIMER = 3
    EVALUATE = 4
    CRASH = 5  # a device loses its job
    LEAVE = 6
    RETURN = 7


_FINISH, _EVALUATE = Kind.FINISH, Kind.EVALUATE  # with member lookups an event takes 2 % longer (`cabafl bench engine`)


@dataclass(slots=True)
class SimulatedFlight(Flight):
    """A job of a simulated device, whose end is known when it is dispatched."""

    seconds: float = 0.0
    joules: float = 0.0
    corrupt: str | None = None
    needed: bool = False  # its result will be used
    ticket: int | None = None  # from the executor, if the result is needed


@dataclass(slots=True)
class Gathering(State):
    """A feature collection in progress."""

    weights: Weights
    feature: FeatureKind
    asked: Ints
    missing: Ints
    needed: bool
    instant: bool  # takes no time
    tickets: list[int] = field(default_factory=list)


class VirtualEngine(Engine):
    """Runs one method on one simulated fleet."""

    clock = "virtual"
    defaults = SIMULATED

    def __init__(
        self, setup: EngineSetup, fleet: Fleet, faults: Faults | None = None, interrupt: Interrupt | None = None
    ) -> None:
        self.fleet = fleet
        self.faults = faults or Faults()
        self.attack = self.faults.attack
        super().__init__(setup, fleet.sizes if self.attack is None else self.attack.claims(fleet.sizes))
        self.interrupt = interrupt or (lambda: None)
        self.horizon = FOREVER if self.limits.seconds is None else self.limits.seconds
        self.away: dict[int, float] = {}  # devices that are away, and since when
        self.flights: dict[int, SimulatedFlight] = {}
        self.queue: list[tuple[float, int, int, Kind, Any]] = []
        self._serial = 0
        self._features = np.zeros((len(fleet), 0), dtype=np.float32)
        self._faulty = bool(self.faults.loss or self.faults.corrupt or self.faults.slowdown)
        self._meter = IdleMeter(np.where(self.sizes > 0, fleet.idle_watts, 0.0))
        self._metered = bool(fleet.idle_watts.any())  # by default nobody draws idle power
        timeout = self.limits.slot_timeout
        self._timeout = None if timeout == "auto" else timeout  # no simulated device is silent for ever

    # The loop

    def start(self) -> None:
        """Time 0: evaluates the initial model and starts the method."""
        self.defence.report(self.sizes)
        self._evaluate()
        self._schedule_evaluation(1)
        if self.faults.devices_leave:
            for device in np.flatnonzero(self.sizes > 0).tolist():
                self._schedule_absence(device, 0, 0.0)
        self.method.start(self)

    def step(self) -> bool:
        """Handles the next event; False when the run is over. If ``interrupt`` raises, the state is the one before the
        event."""
        if self.ledger.dispatches >= self._most and self._all_back():
            return False
        if not self.queue or self.queue[0][0] > self.horizon:
            self.now = self.horizon if self.horizon < FOREVER else self.now
            return False
        self.interrupt()
        time, _, _, kind, what = self.queue[0]
        if kind is _FINISH:
            flight = self.flights.get(what)
            ticket = None if flight is None else flight.ticket
            trained = None if ticket is None else self.executor.result(ticket, self.interrupt)
            heapq.heappop(self.queue)
            self.now = time
            if flight is not None:  # None: cancelled, or its device left
                self._end_job(flight, trained)
        else:
            rows = self._gathered(time, what) if kind is Kind.FEATURES else None
            heapq.heappop(self.queue)
            self.now = time
            self._handle(kind, what, rows)
        if self.outbox.waiting:
            self.outbox.flush()
        return True

    def run(self) -> None:
        """Runs from time 0 to the end."""
        self.start()
        while self.step():
            pass
        self.finish()

    def _all_back(self) -> bool:
        """Whether no job is pending; after ``max_dispatches`` jobs this ends the run."""
        return all(flight.abandoned for flight in self.flights.values())

    def _handle(self, kind: Kind, what: Any, rows: Any) -> None:
        """Handles all events but the end of a job."""
        if kind is Kind.EVALUATE:
            self._evaluate()
            self._schedule_evaluation(what + 1)
        elif kind is Kind.TIMEOUT:
            self._time_out(what)
        elif kind is Kind.FEATURES:
            self._end_collection(what, rows)
        elif kind is Kind.TIMER:
            self.method.on_timer(self, what)
        elif kind is Kind.CRASH:
            self._crash(what)
        elif kind is Kind.LEAVE:
            self._leave(*what)
        else:
            self._return(*what)

    def _schedule_at(self, time: float, kind: Kind, what: Any) -> None:
        self._serial = serial = self._serial + 1
        heapq.heappush(self.queue, (time, 1 if kind is _EVALUATE else 0, serial, kind, what))

    def _schedule_evaluation(self, number: int) -> None:
        if self.limits.evaluate_versions is None:
            self._schedule_at(self.limits.evaluate_every * number, Kind.EVALUATE, number)

    # What a method orders

    def dispatch(self, device: int, weights: Weights, slot: int = 0, objective: Objective = PLAIN) -> int | None:
        """See `Server.dispatch`."""
        number = self._book_dispatch(device, weights)
        if number is None:
            return None
        objective = objective if self.schedule is None else self._scheduled(objective)
        work = 1.0 if objective.epochs is None else objective.epochs / self.epochs
        fate = self.faults.fate(number) if self._faulty else FINE
        if fate.stretch != 1.0:
            work *= fate.stretch
            self.ledger.slowed += 1
        now, version = self.now, self.version
        seconds, joules = self.fleet.job(device, work)
        flight = SimulatedFlight(
            number, device, slot, version, weights, objective, now, False, seconds, joules, fate.corrupt
        )
        self.flights[number] = flight
        end = now + seconds
        if fate is FINE and self._timeout is None and end < FOREVER:  # the usual case, 2 % of an event faster
            self._schedule_at(end, _FINISH, number)
            flight.needed = end <= self.horizon
        else:
            flight.needed = self._schedule_end(flight, fate)
        if flight.needed:
            self._submit_training(flight)
        self.outbox.put(Dispatched(now, number, device, slot, version, end))
        return number

    def _schedule_end(self, flight: SimulatedFlight, fate: Fate) -> bool:
        """Schedules the end of a job and returns whether its trained weights will be used."""
        number, end = flight.number, self.now + flight.seconds
        if fate.crash_at is not None:
            end = self.now + fate.crash_at * flight.seconds
            self._schedule_at(end, Kind.CRASH, number)
        elif end < FOREVER:
            self._schedule_at(end, _FINISH, number)
        timeout = self._timeout
        late = timeout is not None and end > self.now + timeout
        if timeout is not None and late:
            self._schedule_at(self.now + timeout, Kind.TIMEOUT, number)
        return not late and fate.crash_at is None and fate.corrupt is None and end <= self.horizon

    def _submit_training(self, flight: SimulatedFlight) -> None:
        flipped = self.attack is not None and flight.device in self.attack.flips_labels
        training = TrainJob(flight.number, flight.device, flight.weights, flight.objective, flipped)
        flight.ticket = self.executor.submit(training, flight.started + flight.seconds)

    def cancel(self, job: int) -> None:
        """See `Server.cancel`. The energy spent so far is counted."""
        flight = self._drop(job)
        if flight is None:
            return
        self.ledger.losses["cancelled"] += 1
        self.outbox.put(Lost(self.now, job, flight.device, flight.slot, "cancelled"))
        self.idle.add(flight.device)

    def _drop(self, number: int) -> SimulatedFlight | None:
        """Ends a job early; None if there is no such job."""
        flight = self.flights.pop(number, None)
        if flight is not None:
            if flight.ticket is not None:
                self.executor.discard(flight.ticket)
            self._spend(flight, min(1.0, (self.now - flight.started) / flight.seconds))
        return flight

    def _spend(self, flight: SimulatedFlight, share: float = 1.0) -> None:
        """Counts the energy of a job that has ended, or of the share of it that was done."""
        self.ledger.joules += flight.joules * share
        if self._metered:
            self._meter.exclude(flight.device, (flight.seconds - self.fleet.latency) * share)

    def _settle(self) -> None:
        """See `Engine._settle`. Jobs in flight are neither idle nor counted yet."""
        flights = ((flight.device, flight.started) for flight in self.flights.values())
        self.ledger.idle_joules = self._meter.joules(self.now, chain(flights, self.away.items()))

    def set_timer(self, delay: float, name: str) -> None:
        """See `Server.set_timer`."""
        self._schedule_at(self.now + delay, Kind.TIMER, name)

    def collect_features(
        self, weights: Weights, kind: FeatureKind, timeout: float | None = None, instant: bool = False
    ) -> None:
        """See `Server.collect_features`. Devices answer in parallel to training; one event marks the last answer."""
        here = self.sizes > 0
        here[list(self.away)] = False
        asked = np.flatnonzero(here)
        self.ledger.feature_downloads += len(asked)
        self.ledger.bytes += len(asked) * weights.nbytes
        seconds = np.zeros(len(asked)) if instant else self.fleet.collection_seconds()[asked]
        allowed = FOREVER if timeout is None else timeout
        end = self.now + min(float(seconds.max(initial=0.0)), allowed)
        gathering = Gathering(weights, kind, asked, asked[seconds > allowed], end <= self.horizon, instant)
        self.outbox.put(Collection(self.now, "start", len(asked), 0))
        self._schedule_at(end, Kind.FEATURES, gathering)
        self._submit_features(end, gathering)

    def _submit_features(self, end: float, what: Gathering) -> None:
        if what.needed:
            chunks = self.executor.feature_chunks[:AHEAD]
            what.tickets = [self._submit_chunk(end, what, devices) for devices in chunks]

    def _submit_chunk(self, end: float, what: Gathering, devices: range) -> int:
        return self.executor.submit(FeatureJob(what.weights, what.feature, devices), end)

    # Events

    def _end_job(self, flight: SimulatedFlight, trained: TrainingResult | None) -> None:
        del self.flights[flight.number]
        self._spend(flight)
        self.idle.add(flight.device)
        if flight.abandoned:
            self.method.on_idle(self, flight.device)
            return
        weights, loss = trained or (_corrupted(flight.weights, flight.corrupt), None)
        if self.attack is not None and trained is not None:
            weights = self.attack.upload(flight.number, flight.device, flight.weights, weights)
        self._take_upload(flight, weights, flight.seconds, loss)

    def _time_out(self, number: int) -> None:
        flight = self.flights.get(number)
        if flight is not None:
            flight.abandoned = True
            self._lose(flight, "timeout")

    def _crash(self, number: int) -> None:
        flight = self._drop(number)
        if flight is None:
            return
        self.idle.add(flight.device)
        if flight.abandoned:
            self.method.on_idle(self, flight.device)
        else:
            self._lose(flight, "crash")

    def _schedule_absence(self, device: int, number: int, since: float) -> None:
        absence = self.faults.absence(device, number, since)
        if absence is not None:
            self._schedule_at(absence.leave, Kind.LEAVE, (device, number, absence.back))

    def _leave(self, device: int, number: int, back: float) -> None:
        self.away[device] = self.now
        self._schedule_at(back, Kind.RETURN, (device, number))
        if device in self.idle:
            self.idle.remove(device)
            return
        busy = self.flight_of(device)
        assert busy is not None, "a device is idle, away or busy"
        flight = self._drop(busy.number)
        assert flight is not None
        if not flight.abandoned:
            self._lose(flight, "left")

    def _return(self, device: int, number: int) -> None:
        self._meter.exclude(device, self.now - self.away.pop(device))
        self._schedule_absence(device, number + 1, self.now)
        self.idle.add(device)
        self.method.on_idle(self, device)

    def _gathered(self, end: float, what: Gathering) -> npt.NDArray[np.float32]:
        """The feature table, one row per device. It overwrites the previous table chunk by chunk, so that the features
        of a large fleet are in memory only once. After the first chunk it cannot be interrupted."""
        chunks = self.executor.feature_chunks if what.needed else []
        tickets = deque(what.tickets)
        for i, devices in enumerate(chunks):
            part = self.executor.result(tickets.popleft(), self.interrupt if i == 0 else None)
            if i + AHEAD < len(chunks):
                tickets.append(self._submit_chunk(end, what, chunks[i + AHEAD]))
            if part.shape[1] > self._features.shape[1]:  # a chunk without samples has width 0
                # torch aligns memory, so that sums over it have the same bits in every run
                self._features = torch.zeros((len(self.fleet), part.shape[1])).numpy()
            self._features[devices.start : devices.stop] = part if part.shape[1] else 0.0
        return self._features

    def _end_collection(self, gathering: Gathering, rows: npt.NDArray[np.float32]) -> None:
        width = rows.shape[1]
        answered = np.zeros(len(rows), dtype=bool)
        answered[gathering.asked] = True
        answered[gathering.missing] = False
        count = int(answered.sum())
        self.ledger.feature_uploads += count
        self.ledger.bytes += count * width * FEATURE_BYTES
        self.ledger.joules += self.fleet.collection_joules(gathering.asked)
        if not gathering.instant:
            self._meter.excluded += self.fleet.collection_idle_joules(gathering.asked)
        if self.attack is not None and gathering.feature == "labels":
            liars = sorted(self.attack.flips_labels)
            rows[liars] = rows[liars, ::-1]
        self.defence.features(rows, answered)
        known = int(answered.sum())
        self.outbox.put(Collection(self.now, "end", known, len(gathering.asked) - known))
        self.method.on_features(self, rows)

    # State

    def state(self) -> dict[str, Any]:
        """See `Engine.state`; adds the queue and the jobs in flight."""
        return super().state() | {
            "away": self.away,
            "flights": self.flights,
            "queue": [(time, rank, serial, int(kind), what) for time, rank, serial, kind, what in self.queue],
            "serial": self._serial,
            "not_idle": self._meter.excluded,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`. Jobs in flight are computed again, with the same results."""
        super().restore(state)
        self.away = state["away"]
        self._meter.excluded = state["not_idle"]
        self.flights = state["flights"]
        self.queue = [(time, rank, serial, Kind(kind), what) for time, rank, serial, kind, what in state["queue"]]
        self._serial = state["serial"]
        for flight in self.flights.values():
            if flight.needed:
                self._submit_training(flight)
        for time, _, _, kind, what in sorted(self.queue, key=lambda entry: entry[:3]):
            if kind is Kind.FEATURES:
                self._submit_features(time, what)


def _corrupted(weights: Weights, how: str | None) -> Weights:
    """The upload of a faulty device: all NaN, or of the wrong length."""
    return np.full_like(weights, np.nan) if how == "nan" else np.zeros(weights.size + 1, dtype=np.float32)
