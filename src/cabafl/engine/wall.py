"""The engine on the wall clock: it handles inputs and produces orders for the devices.

It uses no network: `deployment.server` turns messages into inputs and orders into messages. Timers, timeouts and
evaluations happen when the first input after their time arrives, in the order of their times.
"""

from collections.abc import Callable, Container
from functools import partial
from typing import Any

import numpy as np
import torch

from cabafl.engine.core import FEATURE_BYTES, FOREVER, EngineSetup, Flight
from cabafl.engine.defence import DEPLOYED, VotedMedian, distance
from cabafl.engine.handed import usable_query
from cabafl.engine.idle import IdleSet, Resting
from cabafl.engine.inputs import (
    Arrived,
    Changed,
    Failed,
    Gathered,
    Held,
    Input,
    Joined,
    Left,
    Operated,
    Passed,
    Started,
    Stopping,
)
from cabafl.engine.operated import OperatedEngine
from cabafl.engine.orders import Alarm, Orders, Question, automatic_timeout
from cabafl.engine.quarantine import attempt
from cabafl.methods.base import PLAIN, FeatureKind, Job, LossReason, Objective, Weights
from cabafl.recording.events import Collection, Dispatched, Lost

COLLECTION_TIMEOUT = 600.0  # default, in seconds


class WallEngine(OperatedEngine):
    """Runs one method on real devices. ``devices`` is the number of devices that may ever join; one that has not joined
    has no samples and is not idle. ``norm_bound`` rejects uploads that moved further than this."""

    clock = "wall"
    defaults = DEPLOYED

    def __init__(self, setup: EngineSetup, devices: int, norm_bound: float | None = None) -> None:
        super().__init__(setup, np.zeros(devices, dtype=np.int64), norm_bound)
        self.sizes = np.zeros(devices, dtype=np.int64)  # not the array of claims, which may be larger
        self._size = self.sizes.data
        self.present: set[int] = set()
        self.question: Question | None = None
        self.durations = VotedMedian(devices)  # seconds from dispatch to answer of each device's last job
        self.resting = Resting()
        self._ask = False
        self.skipped: Container[str] = ()  # alarms at which the method failed before this server was started
        self._features = np.zeros((devices, 0), dtype=np.float32)

    @property
    def started(self) -> bool:
        """Whether the run has started."""
        return self._score is not None

    @property
    def over(self) -> bool:
        """Whether the time limit is reached, or all ``max_dispatches`` jobs have been answered, lost or given up, or
        the operator has ended the run."""
        if self.stopping == "now" or (self.limits.seconds is not None and self.now >= self.limits.seconds):
            return True
        return self.ledger.dispatches >= self._most and not self.jobs.pending and not self.jobs.held

    @property
    def flights(self) -> dict[int, Flight]:  # type: ignore[override]
        """The jobs in flight by number."""
        return self.jobs.flights

    # Orders of the method

    def dispatch(
        self,
        device: int,
        weights: Weights,
        slot: int = 0,
        objective: Objective = PLAIN,
        correction: Weights | None = None,
    ) -> int | None:
        """See `Server.dispatch`."""
        device, weights, slot, objective = self._usable(device, weights, slot, objective, correction)
        number = self._book_dispatch(device, weights, correction)
        if number is None:
            return None
        factor = self._factor()
        self.jobs.add(Flight(number, device, slot, self.version, weights, objective, correction, factor, self.now))
        due = self.now + self.durations.votes.get(device, 0.0)
        self.outbox.put(Dispatched(self.now, number, device, slot, self.version, due))
        return number

    def cancel(self, job: int) -> None:
        """See `Server.cancel`. A device that cannot stop finishes the old job before it starts a new one."""
        flight = self.jobs.land(job)
        if flight is None:
            return
        self.ledger.losses["cancelled"] += 1
        self.jobs.cancel(flight)
        self.outbox.put(Lost(self.now, flight.number, flight.device, flight.slot, "cancelled"))
        self._free(flight.device)

    def _order_finish(self, flight: Flight) -> None:
        self.jobs.finished.append(flight.number)

    def _order_fetch(self, flight: Flight) -> None:
        self.jobs.fetch(flight)

    def _free(self, device: int) -> bool:
        """Makes a device idle that has ended a job; False if it is away, rests or has no samples any more."""
        usable = device in self.present and self._size[device] > 0 and not self.resting.rests(device, self.now)
        if usable:
            self.idle.add(device)
        return usable

    def _ring_at(self, time: float, name: str) -> None:
        self.alarms.set(time, Alarm.TIMER, name)

    def collect_features(
        self, weights: Weights, kind: FeatureKind, timeout: float | None = None, instant: bool = False
    ) -> None:
        """See `Server.collect_features`. ``instant`` has no effect here; there is always a timeout."""
        weights, timeout = usable_query(weights, timeout, self.initial, self._at_once("collects features"))
        timeout = timeout or self.slot_timeout() or COLLECTION_TIMEOUT
        asked = np.array(sorted(self.present), dtype=np.int64)
        self.ledger.feature_downloads += len(asked)
        self.ledger.bytes += len(asked) * weights.nbytes
        self.question = Question(weights, kind, asked, self.now + timeout)
        self._ask = True
        self.outbox.put(Collection(self.now, "start", len(asked), 0))

    def take_orders(self) -> Orders:
        """Returns each order once. A checkpoint does not include orders: after a restart they follow from ``flights``
        and ``question``."""
        ask, self._ask = self._ask, False
        return self.jobs.take_orders(ask)

    # Inputs

    def handle(self, given: Input) -> None:
        """Handles one input, after everything that was due before it. After an exception the engine must not be used
        any more: restore a checkpoint, and leave the input out."""
        with np.errstate(over="ignore"):  # of the norm of an absurd upload, which is rejected for it
            self._ring_until(given.time)
            self.now = max(self.now, given.time)
            self._handle(given)
        if self.outbox.waiting:
            self.outbox.flush()

    def _handle(self, given: Input) -> None:
        if isinstance(given, Arrived):
            self._arrive(given)
        elif isinstance(given, Joined):
            self._join(given)
        elif isinstance(given, Left):
            self._leave(given.device)
        elif isinstance(given, Failed):
            self._fail(given.job, given.reason)
        elif isinstance(given, Held):
            self._ready(given)
        elif isinstance(given, Gathered):
            self._end_question(given)
        else:
            self._control(given)

    def _control(self, given: Started | Changed | Stopping | Operated | Passed) -> None:
        """What the server and its operator do."""
        if isinstance(given, Started):
            # The order in which devices joined is arbitrary: sort them, as in a simulation, so that draws agree.
            self.idle = IdleSet(len(self.sizes), np.array(sorted(self.idle), dtype=np.int64))
            self._bound_samples()
            self._evaluate()
            self._set_evaluation(1)
            self.method.start(self)
        elif isinstance(given, Changed):
            self._change(given.key, given.value)
        elif isinstance(given, Stopping):
            self._stop(given.at_once)
        elif isinstance(given, Operated):
            self.note("operator", action=given.action, **({} if given.device is None else {"device": given.device}))

    def flight_of(self, device: int) -> Flight | None:
        """The job that a device is working on, if any."""
        return self.jobs.of_device(device)

    def slot_timeout(self) -> float | None:
        """Seconds after which a job is given up, also one in flight; None: never, or not known yet."""
        setting = self.limits.slot_timeout
        return automatic_timeout(self.durations, self.ledger.uploads, self.slots) if setting == "auto" else setting

    def next_alarm(self) -> float:
        """Time of the next alarm or timeout; infinite if there is none."""
        return min(self.alarms.next(), self._next_timeout())

    def _next_timeout(self) -> float:
        """When the oldest job in flight is given up: all jobs have the same time, so it is the first. A device that
        holds a result waits for the server, and not the other way round."""
        timeout, oldest = self.slot_timeout(), self.jobs.oldest()
        return FOREVER if timeout is None or oldest is None else oldest.since + timeout

    def _ring_until(self, now: float) -> None:
        end = now if self.limits.seconds is None else min(now, self.limits.seconds)
        while (time := self.next_alarm()) <= end:
            self.now = max(self.now, time)
            if self._next_timeout() <= time:
                oldest = self.jobs.oldest()
                assert oldest is not None
                self._time_out(oldest)
                continue
            serial, kind, what = self.alarms.pop()
            if kind == Alarm.TIMER:
                self._tell(f"timer {serial}", partial(self.method.on_timer, self, what))
            elif kind == Alarm.REST:
                self._end_rest(what)
            else:
                self._evaluate()
                self._set_evaluation(what + 1)

    def _tell(self, alarm: str, call: Callable[[], None]) -> None:
        """Calls the method because of an alarm, unless it failed at that one before the server was started again."""
        if alarm in self.skipped:
            self.note("skip", alarm=alarm)
        else:
            attempt(alarm, call)

    def _end_method(self) -> None:
        self._tell("the end of the run", super()._end_method)

    def _join(self, given: Joined) -> None:
        """A device that joins again while it has a job has lost that job. One without samples is never idle."""
        device = given.device
        self._lose_job_of(device, "crash")
        self.defence.join(device, given.samples)
        self.sizes[device] = self.defence.samples(device) if self.started else self.defence.claimed[device]
        self.present.add(device)
        if device in self.idle:
            if not self._size[device]:
                self.idle.remove(device)
        elif self._free(device) and self.started:
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
            self.jobs.land(flight.number)
            if not flight.abandoned:
                self._lose(flight, reason)

    def _time_out(self, flight: Flight) -> None:
        """The device stays busy until it answers or says that it has stopped."""
        self.jobs.give_up(flight)
        self._tell(f"the timeout of job {flight.number}", partial(self._lose, flight, "timeout"))

    def _arrive(self, given: Arrived) -> None:
        flight = self.jobs.land(given.job)
        if flight is None:
            return  # already counted as cancelled or lost
        device = flight.device
        if not flight.ready:  # else its costs were reported when it was ready
            self._count_answer(flight, given)
        told = self.epochs if flight.objective.epochs is None else flight.objective.epochs
        trained = self.defence.trained(device, given, told)
        self._free(device)
        if flight.abandoned:
            self.method.on_idle(self, device)
        else:
            self._take_upload(flight, trained, self.now - flight.started)

    def _count_answer(self, flight: Flight, given: Arrived | Held) -> None:
        """Counts what a training has taken."""
        self.durations.vote(flight.device, self.now - flight.started)
        seconds, joules = self.defence.costs(flight.device, given)
        self.ledger.joules += joules
        self.note("answer", job=given.job, seconds=seconds, joules=joules)

    def _ready(self, given: Held) -> None:
        """A job that was given up meanwhile ends here; so does one that was not to be held."""
        flight = self.flights.get(given.job)
        if flight is None or flight.ready:
            return
        if not flight.objective.hold:
            self._fail(given.job, "rejected")
            return
        self._count_answer(flight, given)
        if flight.abandoned:
            self.jobs.cancel(flight)
            self.jobs.land(flight.number)
            if self._free(flight.device):
                self.method.on_idle(self, flight.device)
            return
        self.jobs.hold(flight)
        self.note("ready", job=flight.number, device=flight.device)
        self.method.on_ready(self, flight)

    def _problem(self, job: Job, weights: Weights) -> LossReason | None:
        """Adds the norm bound to the shared rules, and that a result which is to be held must have been fetched."""
        problem = super()._problem(job, weights)
        if isinstance(job, Flight) and job.objective.hold and job.fetched is None:
            return "rejected"
        if problem is None and self.norm_bound is not None and distance(weights, job.weights) > self.norm_bound:
            return "rejected"
        if problem is None:
            self.resting.work(job.device)
        return problem

    def _lose(self, job: Job, reason: LossReason) -> None:
        """A device that fails again and again rests: it is not idle when the method hears of the loss."""
        until = self.resting.fail(job.device, self.now) if reason in ("crash", "rejected") else None
        if until is not None:
            if job.device in self.idle:
                self.idle.remove(job.device)
            self.alarms.set(until, Alarm.REST, job.device)
            self.note("rest", device=job.device, until=until)
        super()._lose(job, reason)

    def _end_rest(self, device: int) -> None:
        if device not in self.idle and device not in self.jobs.job_of and self._free(device):
            self._tell(
                f"the end of a rest of device {device} at {self.now} s", partial(self.method.on_idle, self, device)
            )

    def _fail(self, number: int, reason: LossReason) -> None:
        flight = self.jobs.land(number)
        if flight is None:
            return
        idle = self._free(flight.device)
        if not flight.abandoned:
            self._lose(flight, reason)
        elif idle:
            self.method.on_idle(self, flight.device)

    def _end_question(self, given: Gathered) -> None:
        if self.question is None:
            return  # a second end of the same collection
        asked, self.question = self.question.asked, None
        count = int(given.answered.sum())
        self.ledger.feature_uploads += count
        self.ledger.bytes += count * given.rows.shape[1] * FEATURE_BYTES
        if self._features.shape != given.rows.shape:
            self._features = torch.zeros(given.rows.shape).numpy()  # aligned, so that sums are reproducible
        self._features[...] = given.rows
        answered = given.answered.copy()
        self.defence.features(self._features, answered)
        known = int(answered.sum())
        self.outbox.put(Collection(self.now, "end", known, len(asked) - known))
        self.method.on_features(self, self._features)

    # State

    def state(self) -> dict[str, Any]:
        """See `OperatedEngine.state`; also includes the devices."""
        return super().state() | {
            "sizes": self.sizes,
            "present": sorted(self.present),
            "question": self.question,
            "durations": self.durations,
            "resting": self.resting,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        super().restore(state)
        self.sizes[:] = state["sizes"]
        self.present = set(state["present"])
        self.question = state["question"]
        self.durations = state["durations"]
        self.resting = state["resting"]
