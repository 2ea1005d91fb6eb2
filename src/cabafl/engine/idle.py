"""Which devices can get a job: the idle ones, and on real devices those among them that do not rest.

Also the energy that simulated devices spend while they wait.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from cabafl.methods.base import Ints, Random
from cabafl.state import State

PATIENCE = 3  # failures in a row before a device rests
FIRST_REST, LONGEST_REST = 30.0, 600.0  # seconds; every further failure doubles the rest


class IdleSet(State):
    """Adds, removes, tests and draws in O(1). Ids are packed in an array; the last one fills the gap of a removed one.

    The order of the ids depends on the history of the run. It is the same in every repetition; checkpoints store it.
    """

    def __init__(self, devices: int, members: Ints) -> None:
        self._ids = np.empty(devices, dtype=np.int64)
        self._ids[: len(members)] = members
        self._place = np.full(devices, -1, dtype=np.int64)
        self._place[members] = np.arange(len(members))
        self._count = len(members)
        self._views()

    def _views(self) -> None:
        """Memoryviews of the arrays, for single entries: with the arrays an event takes 4 % longer (`cabafl bench
        engine`)."""
        self._id, self._at = self._ids.data, self._place.data

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores."""
        return {"ids": self._ids, "place": self._place, "count": self._count}

    def restore(self, state: dict[str, Any]) -> None:
        """Sets everything from a `state`."""
        self._ids, self._place, self._count = state["ids"], state["place"], state["count"]
        self._views()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, device: int) -> bool:
        try:
            return device >= 0 and self._at[device] >= 0
        except IndexError:  # there is no such device
            return False

    def __iter__(self) -> Iterator[int]:
        return iter(self.array().tolist())

    def array(self) -> Ints:
        """All members, as a view: valid until the next change."""
        return self._ids[: self._count]

    def among(self, devices: Ints) -> npt.NDArray[np.bool_]:
        """A mask: which of ``devices`` are members."""
        return self._place[devices] >= 0

    def add(self, device: int) -> None:
        """Adds a device; raises RuntimeError if it is a member."""
        count = self._count
        if self._at[device] >= 0:
            raise RuntimeError(f"device {device} is idle already")
        self._id[count] = device
        self._at[device] = count
        self._count = count + 1

    def remove(self, device: int) -> None:
        """Removes a device; raises RuntimeError if it is not a member."""
        try:
            place = self._at[device]
        except IndexError:  # there is no such device
            place = -1
        if place < 0 or device < 0:
            raise RuntimeError(f"device {device} is not idle")
        self._count = count = self._count - 1
        last = self._id[count]
        self._id[place] = last
        self._at[last] = place
        self._at[device] = -1

    def draw(self, random: Random, without: int | None = None) -> int:
        """Draws one member uniformly. ``without`` is drawn only if it is the only member."""
        if without is None or self._count == 1 or without not in self:
            return self._id[random.below(self._count)]
        place = random.below(self._count - 1)
        return self._id[place if place < self._at[without] else place + 1]

    def draw_many(self, random: Random, k: int, without: Collection[int] = ()) -> list[int]:
        """Draws up to ``k`` distinct members, none of ``without``. O(n) if ``without`` has members, else O(k)."""
        barred = [self._at[device] for device in without if device in self]
        members = np.delete(self.array(), barred) if barred else self._id
        count = self._count - len(set(barred))
        return [int(members[place]) for place in random.distinct(count, min(k, count))]


class Resting(State):
    """Devices that fail again and again get no jobs for a while: they would take the jobs of the others.

    Counts failures in a row of each device, and knows until when it rests. Nothing is kept of devices that work.
    """

    def __init__(self) -> None:
        self._failures: dict[int, int] = {}
        self._until: dict[int, float] = {}

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores."""
        return {"failures": self._failures, "until": self._until}

    def restore(self, state: dict[str, Any]) -> None:
        """Sets everything from a `state`."""
        self._failures, self._until = state["failures"], state["until"]

    def fail(self, device: int, now: float) -> float | None:
        """Counts a failure; returns the end of the rest that begins now, if one does."""
        count = self._failures[device] = self._failures.get(device, 0) + 1
        if count < PATIENCE:
            return None
        until = self._until[device] = now + min(FIRST_REST * 2.0 ** min(count - PATIENCE, 20), LONGEST_REST)
        return until

    def work(self, device: int) -> None:
        """The device has delivered: its failures are forgotten."""
        self._failures.pop(device, None)
        self._until.pop(device, None)

    def rests(self, device: int, now: float) -> bool:
        """Whether the device gets no job now."""
        return self._until.get(device, now) > now


class IdleMeter:
    """Idle watts x the seconds in which a device is present and neither computes nor transfers.

    Counted from the other side, so that an event costs one addition whatever the number of devices: idle power of all
    devices since time 0, minus what it would have been while they were active or away. A device that answers a feature
    collection during a job does two things at once; both times are subtracted, so that each of them adds what it draws
    above idle power.
    """

    def __init__(self, watts: npt.NDArray[np.float64]) -> None:
        self.watts = watts
        self.excluded = 0.0  # joules of idle power in the times that do not count
        self._watt = watts.data  # a memoryview: faster for single entries
        self._total = float(watts.sum())

    def exclude(self, device: int, seconds: float) -> None:
        """A device was active or away for so long."""
        self.excluded += self._watt[device] * seconds

    def joules(self, now: float, busy: Iterable[tuple[int, float]]) -> float:
        """Idle energy of all devices until ``now``. ``busy``: devices in a job or away now, and since when."""
        current = sum(self._watt[device] * (now - since) for device, since in busy)
        return self._total * now - self.excluded - current
