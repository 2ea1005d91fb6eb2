"""The set of idle devices, with constant-time operations."""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from cabafl.methods.base import Ints, Random
from cabafl.state import State


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
        """Memoryviews of the arrays, which are faster for single entries."""
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
        return self._at[device] >= 0

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
        place = self._at[device]
        if place < 0:
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
