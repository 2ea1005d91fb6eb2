"""What the engine on the wall clock wants to be sent to devices, what it has planned for later, and when it gives up a
job."""

import heapq
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from cabafl.engine.defence import VotedMedian
from cabafl.methods.base import FeatureKind, Ints, Weights
from cabafl.state import State

TIMEOUT_FACTOR = 5.0  # of the median job time
SHORTEST_TIMEOUT = 30.0  # seconds; below it the network and a busy device make more difference than the job
ENOUGH_UPLOADS = 3  # before the median counts; with few slots half of them, so that the first round cannot stall


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
    (``run.slot_timeout = "auto"``); None as long as too little is known."""
    median = durations.value()
    if median is None or uploads < min(ENOUGH_UPLOADS, (slots + 1) // 2):
        return None
    return max(SHORTEST_TIMEOUT, TIMEOUT_FACTOR * median)
