"""The engine in virtual time: a queue of future events, and simulated devices.

Events are handled in the order (time, rank, serial): equal times in the order they were scheduled, evaluations last, so
that an evaluation at time t includes everything that happened at t. When a job is dispatched, its end is already known.
A result that will not be used is never computed; all other jobs in flight are computed while the clock waits.
"""

from dataclasses import replace
from heapq import heappop, heappush
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from cabafl.engine.core import FEATURE_BYTES, FOREVER, Engine, EngineSetup
from cabafl.engine.defence import SIMULATED
from cabafl.engine.gathering import Gatherer, Gathering
from cabafl.engine.handed import usable_query
from cabafl.engine.idle import IdleMeter
from cabafl.engine.orders import told
from cabafl.engine.simulated import Kind, SimulatedFlight, corrupted
from cabafl.execution.base import Interrupt, TrainJob
from cabafl.fleet import FINE, Faults, Fleet
from cabafl.learning.task import TrainingResult
from cabafl.methods.base import PLAIN, FeatureKind, Objective, Weights
from cabafl.recording.events import Collection, Dispatched, Lost

_FINISH, _EVALUATE = Kind.FINISH, Kind.EVALUATE  # with member lookups an event takes 2 % longer (`cabafl bench engine`)


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
        self._gatherer = Gatherer(self.executor, len(fleet), self.interrupt)
        self._faulty = bool(self.faults.loss or self.faults.corrupt or self.faults.slowdown)
        self._meter = IdleMeter(np.where(self.sizes > 0, fleet.idle_watts, 0.0))
        self._metered = bool(fleet.idle_watts.any())  # by default nobody draws idle power
        timeout = setup.limits.slot_timeout  # auto: none, since no simulated device is silent for ever
        self._timeout = None if timeout == "auto" else timeout
        self._plain = not (self._faulty or setup.schedule or self._timeout) and fleet.most_passes is None

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
        self.check_method()

    def step(self) -> bool:
        """Handles the next event; False when the run is over. If ``interrupt`` raises, the state is the one before the
        event."""
        if self.ledger.dispatches >= self._most and all(flight.abandoned for flight in self.flights.values()):
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
            heappop(self.queue)
            self.now = time
            if flight is not None:  # None: cancelled, or its device left
                self._end_job(flight, trained)
        else:
            rows = self._gatherer.table(time, what) if kind is Kind.FEATURES else None
            heappop(self.queue)
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
        self.conclude()

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
        elif kind is Kind.READY:
            self._ready(what)
        elif kind is Kind.LEAVE:
            self._leave(*what)
        else:
            self._return(*what)

    def _schedule_at(self, time: float, kind: Kind, what: Any) -> None:
        self._serial = serial = self._serial + 1
        heappush(self.queue, (time, 1 if kind is _EVALUATE else 0, serial, kind, what))

    def _schedule_evaluation(self, number: int) -> None:
        if self.limits.evaluate_versions is None:
            self._schedule_at(self.limits.evaluate_every * number, Kind.EVALUATE, number)

    # What a method orders

    def dispatch(
        self,
        device: int,
        weights: Weights,
        slot: int = 0,
        objective: Objective = PLAIN,
        correction: Weights | None = None,
    ) -> int | None:
        """See `Server.dispatch`. The result of a job that is held is computed when it is fetched."""
        plain = objective is PLAIN and correction is None
        if not (plain and weights is self._sound and type(device) is type(slot) is int):
            device, weights, slot, objective = self._usable(device, weights, slot, objective, correction)
        number = self._book_dispatch(device, weights, correction)
        if number is None:
            return None
        now, version = self.now, self.version
        flight = SimulatedFlight(number, device, slot, version, weights, objective, correction, 1.0, now)
        if plain and self._plain:
            fleet = self.fleet
            flight.seconds, flight.joules = fleet.full_seconds[device], fleet.full_joules[device]
            end = now + flight.seconds
            self._serial = serial = self._serial + 1
            heappush(self.queue, (end, 0, serial, _FINISH, number))
            flight.needed = end <= self.horizon
        else:
            end = self._plan(flight)
        self.flights[number] = flight
        if flight.needed:
            self._submit_training(flight, end)
        self.outbox.put(Dispatched(now, number, device, slot, version, end))
        return number

    def _plan(self, flight: SimulatedFlight) -> float:
        """Schedules what will happen to a new job, and returns when it would end; for a plain one `dispatch` does the
        same itself, which makes an event 4 % shorter (`cabafl bench engine`)."""
        flight.schedule = self._factor()
        fate = self.faults.fate(flight.number) if self._faulty else FINE
        self.ledger.slowed += int(fate.stretch != 1.0)
        flight.plan(self.fleet, self.epochs, fate.stretch)
        flight.corrupt = fate.corrupt
        crash = flight.crash_time(fate)
        if crash < FOREVER:
            self._schedule_at(crash, Kind.CRASH, flight.number)
        self._schedule_end(flight, crash)
        return flight.end

    def _schedule_end(self, flight: SimulatedFlight, crash: float = FOREVER) -> None:
        """Schedules the end of a job, or of the part of it that begins now, unless its device crashes before, and
        decides whether its trained weights will be used."""
        number, end = flight.number, flight.end
        waits = flight.objective.hold and not flight.ready
        if end < crash:
            self._schedule_at(end, Kind.READY if waits else _FINISH, number)
        deadline = FOREVER if self._timeout is None else flight.since + self._timeout
        late = min(end, crash) > deadline
        if late and (flight.epochs is None or flight.ready):  # else its timeout is in the queue already
            self._schedule_at(deadline, Kind.TIMEOUT, number)
        flight.needed = end < crash and end <= self.horizon and not (late or waits or flight.corrupt)

    def _submit_training(self, flight: SimulatedFlight, end: float) -> None:
        objective = flight.objective if flight.schedule == 1.0 else told(flight)
        if flight.epochs is not None:
            objective = replace(objective, epochs=flight.epochs)
        flipped = self.attack is not None and flight.device in self.attack.flips_labels
        training = TrainJob(flight.number, flight.device, flight.weights, objective, flipped, flight.correction)
        flight.ticket = self.executor.submit(training, end)

    def _order_finish(self, flight: SimulatedFlight) -> None:
        """The job ends with the running epoch. A device that would have crashed after that does not."""
        crash = flight.crash_time(self.faults.fate(flight.number) if self._faulty else FINE)
        passes = self.fleet.passes(flight.device, flight.objective.epochs or self.epochs)
        if not flight.stop_early(self.now, self.fleet, passes):
            return
        if flight.ticket is not None:
            self.executor.discard(flight.ticket)
            flight.ticket = None
        self._schedule_end(flight, crash)
        if flight.needed:
            self._submit_training(flight, flight.end)

    def _order_fetch(self, flight: SimulatedFlight) -> None:
        flight.seconds, flight.joules = self.fleet.transfer(flight.device)
        self._schedule_end(flight)
        if flight.needed:
            self._submit_training(flight, flight.end)

    def cancel(self, job: int) -> None:
        """See `Server.cancel`. The energy spent so far is counted."""
        flight = self._drop(job)
        if flight is None:
            return
        self.ledger.losses["cancelled"] += 1
        self.outbox.put(Lost(self.now, flight.number, flight.device, flight.slot, "cancelled"))
        self.idle.add(flight.device)

    def _drop(self, number: int) -> SimulatedFlight | None:
        """Ends a job early; None if there is no such job."""
        flight = self.flights.pop(number, None)
        if flight is not None:
            if flight.ticket is not None:
                self.executor.discard(flight.ticket)
            if not flight.held:
                spent = self.now - flight.since
                self._spend(flight, spent / flight.seconds if spent < flight.seconds else 1.0)
        return flight

    def _spend(self, flight: SimulatedFlight, share: float = 1.0) -> None:
        """Counts the energy of a job, or part of a job, that has ended, or of the share of it that was done."""
        self.ledger.joules += flight.joules * share
        if self._metered:
            latency = self.fleet.latency if flight.fetched is None else 0.0
            self._meter.exclude(flight.device, (flight.seconds - latency) * share)

    def _settle(self) -> None:
        """See `Engine._settle`. Jobs in flight are neither idle nor counted yet; holding a result is idling."""
        flights = ((flight.device, flight.since) for flight in self.flights.values() if not flight.held)
        self.ledger.idle_joules = self._meter.joules(self.now, chain(flights, self.away.items()))

    def _ring_at(self, time: float, name: str) -> None:
        self._schedule_at(time, Kind.TIMER, name)

    def collect_features(
        self, weights: Weights, kind: FeatureKind, timeout: float | None = None, instant: bool = False
    ) -> None:
        """See `Server.collect_features`. Devices answer in parallel to training; one event marks the last answer."""
        weights, timeout = usable_query(weights, timeout, self.initial, self._at_once("collects features"))
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
        self._gatherer.submit(end, gathering)

    # Events

    def _end_job(self, flight: SimulatedFlight, trained: TrainingResult | None) -> None:
        del self.flights[flight.number]
        if self._metered:
            self._spend(flight)
        else:  # the same without a call: 2 % of an event (`cabafl bench engine`)
            self.ledger.joules += flight.joules
        self.idle.add(flight.device)
        if flight.abandoned:
            self.method.on_idle(self, flight.device)
            return
        if trained is None:
            trained = TrainingResult(corrupted(flight.weights, flight.corrupt))
        elif self.attack is not None:
            weights = self.attack.upload(flight.number, flight.device, flight.weights, trained.weights)
            trained = trained._replace(weights=weights)
        seconds = flight.seconds if flight.fetched is None else self.now - flight.started
        self._take_upload(flight, trained, seconds)

    def _ready(self, number: int) -> None:
        flight = self.flights.get(number)
        if flight is None or flight.ready:
            return  # cancelled or lost; or told to finish, and ready before
        self._spend(flight)
        if flight.abandoned:
            del self.flights[number]
            self.idle.add(flight.device)
            self.method.on_idle(self, flight.device)
            return
        flight.ready = True
        self.note("ready", job=number, device=flight.device)
        self.method.on_ready(self, flight)

    def _time_out(self, number: int) -> None:
        flight = self.flights.get(number)
        assert self._timeout is not None
        if flight is not None and flight.since + self._timeout <= self.now < flight.end:  # else it finished early
            flight.abandoned = True
            self._lose(flight, "timeout")

    def _crash(self, number: int) -> None:
        ahead = self.flights.get(number)
        flight = None if ahead is None or ahead.ready else self._drop(number)  # ready: it finished early
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
        uploads = {(what, time) for time, _, _, kind, what in self.queue if kind is _FINISH}
        for flight in self.flights.values():
            deadline = FOREVER if self._timeout is None else flight.since + self._timeout
            in_time = (flight.number, flight.end) in uploads and flight.end <= min(self.horizon, deadline)
            flight.needed = in_time and not (flight.abandoned or flight.corrupt)  # the run may be longer now
            if flight.needed:
                self._submit_training(flight, flight.end)
        for time, _, _, kind, what in sorted(self.queue, key=lambda entry: entry[:3]):
            if kind is Kind.FEATURES:
                what.needed = time <= self.horizon
                self._gatherer.submit(time, what)
