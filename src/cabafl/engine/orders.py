"""The jobs in flight on real devices and what their devices have to be told, what the engine has planned for later, and
when it gives up a job."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from cabafl.engine.core import Flight
from cabafl.engine.defence import VotedMedian
from cabafl.methods.base import FeatureKind, Ints, Job, Objective, Weights
from cabafl.state import State

TIMEOUT_FACTOR = 5.0  # of the median job time
SHORTEST_TIMEOUT = 30.0  # seconds; below it the network and a busy device make more difference than the job
ENOUGH_ANSWERS = 3  # before the median counts; with few slots half of them, so that the first round cannot stall


def told(job: Job) -> Objective:
    """What the device of a job is told: its objective, with the factor of the schedule in ``lr_scale``."""
    objective, factor = job.objective, job.schedule
    return objective if factor == 1.0 else replace(objective, lr_scale=objective.lr_scale * factor)


@dataclass(frozen=True)
class Question(State):
    """A feature collection under way."""

    weights: Weights
    kind: FeatureKind
    asked: Ints  # devices
    until: float  # devices that have not answered by then are left out


@dataclass(frozen=True)
class Orders:
    """What the method has ordered since the last `WallEngine.take_orders`."""

    jobs: list[int]  # to send
    ask: bool  # whether to send the feature query
    cancelled: list[tuple[int, int]]  # (job, device): the device need not go on with it
    finished: list[int]  # jobs whose devices stop after the running epoch
    fetched: list[int]  # jobs whose devices upload the result that they hold


class OpenJobs:
    """Each job is one that its device works on, one that is held, or one that was given up. Orders wait here until the
    server sends them; a checkpoint does not include them, because after a restart they follow from the jobs."""

    def __init__(self) -> None:
        self.flights: dict[int, Flight] = {}
        self.pending: dict[int, None] = {}  # jobs that devices work on and that are not given up, by `Flight.since`
        self.held: dict[int, None] = {}  # jobs whose devices hold the result
        self.job_of: dict[int, int] = {}  # by device
        self.clear_orders()

    def clear_orders(self) -> None:
        """Forgets all orders."""
        self.sent: list[int] = []
        self.cancelled: list[tuple[int, int]] = []
        self.finished: list[int] = []
        self.fetched: list[int] = []

    def add(self, flight: Flight) -> None:
        """A new job, which is to be sent."""
        self.flights[flight.number] = flight
        self.job_of[flight.device] = flight.number
        self.pending[flight.number] = None
        self.sent.append(flight.number)

    def of_device(self, device: int) -> Flight | None:
        """The job that a device is working on, if any."""
        number = self.job_of.get(device)
        return None if number is None else self.flights[number]

    def land(self, number: int) -> Flight | None:
        """Takes a job out; None if it is not one of these."""
        flight = self.flights.pop(number, None)
        if flight is not None:
            del self.job_of[flight.device]
            self.pending.pop(number, None)
            self.held.pop(number, None)
        return flight

    def hold(self, flight: Flight) -> None:
        """The device of a job holds its result from now on."""
        flight.ready = True
        del self.pending[flight.number]
        self.held[flight.number] = None

    def fetch(self, flight: Flight) -> None:
        """The device of a job is to upload the result that it holds."""
        del self.held[flight.number]
        self.pending[flight.number] = None
        self.fetched.append(flight.number)

    def give_up(self, flight: Flight) -> None:
        """The server no longer waits for a job; its device is busy until it answers or says that it has stopped."""
        del self.pending[flight.number]
        flight.abandoned = True
        self.cancel(flight)

    def cancel(self, flight: Flight) -> None:
        """The device of a job need not go on with it."""
        self.cancelled.append((flight.number, flight.device))

    def cancel_all(self) -> None:
        """No job is waited for any more."""
        for number in (*self.pending, *self.held):
            self.cancel(self.flights[number])

    def oldest(self) -> Flight | None:
        """The job that the server has waited for longest."""
        return self.flights[next(iter(self.pending))] if self.pending else None

    def take_orders(self, ask: bool) -> Orders:
        """Returns each order once; not those to jobs that have ended since."""
        sent, finished, fetched = (
            [job for job in listed if job in self.pending] for listed in (self.sent, self.finished, self.fetched)
        )
        orders = Orders(sent, ask, self.cancelled, finished, fetched)
        self.clear_orders()
        return orders

    def restore(self, flights: dict[int, Flight], pending: Iterable[int]) -> None:
        """Continues with the jobs of a checkpoint."""
        self.flights = flights
        self.job_of = {flight.device: number for number, flight in flights.items()}
        self.pending = dict.fromkeys(pending)
        self.held = {number: None for number, flight in flights.items() if flight.held}


class Alarm(IntEnum):
    """What happens at a scheduled time of the wall clock."""

    TIMER = 1  # set by the method
    EVALUATE = 2
    REST = 3  # a device has rested


class AlarmQueue(State):
    """Alarms by time; those with the same time in the order in which they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Any]] = []
        self._serial = 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores."""
        return {"heap": self._heap, "serial": self._serial}

    def restore(self, state: dict[str, Any]) -> None:
        """Sets everything from a `state`."""
        self._heap, self._serial = list(state["heap"]), state["serial"]

    def set(self, time: float, kind: Alarm, what: Any) -> None:
        """Adds an alarm."""
        self._serial += 1
        heapq.heappush(self._heap, (time, self._serial, int(kind), what))

    def next(self) -> float:
        """Time of the first alarm; infinite if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def pop(self) -> tuple[int, Alarm, Any]:
        """Removes the first alarm; returns its serial number, its kind and what it is about."""
        _, serial, kind, what = heapq.heappop(self._heap)
        return serial, Alarm(kind), what

    def drop(self, kind: Alarm) -> None:
        """Removes all alarms of a kind."""
        self._heap = [alarm for alarm in self._heap if alarm[2] != kind]
        heapq.heapify(self._heap)


def automatic_timeout(durations: VotedMedian, uploads: int, slots: int) -> float | None:
    """Seconds after which a server of real devices gives up a job, if the experiment leaves that to it
    (``run.slot_timeout = "auto"``); None as long as too little is known. A result that is held is an answer, too: else
    a first upload that never comes would be waited for without end."""
    median, answers = durations.value(), max(uploads, len(durations))
    if median is None or answers < min(ENOUGH_ANSWERS, (slots + 1) // 2):
        return None
    return max(SHORTEST_TIMEOUT, TIMEOUT_FACTOR * median)
