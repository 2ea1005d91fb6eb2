"""The fleet of a run at a moment: what each device does, and has done so far."""

import json
import struct
from collections.abc import Collection
from functools import cached_property
from typing import Any

import numpy as np

from cabafl.watch.columns import Array
from cabafl.watch.facts import NO_TIER
from cabafl.watch.index import EventIndex
from cabafl.watch.jobs import LEFT, UNDER_WAY, UPLOADED

STATES = ("idle", "training", "collecting", "away", "lost")
IDLE, TRAINING, COLLECTING, AWAY, LOST = range(len(STATES))
_TYPES = {
    "state": "u1",
    "tier": "u1",
    "slot": "i4",
    "job": "i4",
    "since": "f4",
    "due": "f4",
    "selections": "u4",
    "seen": "f4",
    "joules": "f4",
    "lost": "u4",
}


class Moment:
    """The jobs of a run up to ``time``. An array of jobs has those that were sent until then, one of devices all
    ``devices``."""

    def __init__(self, index: EventIndex, devices: int, time: float) -> None:
        self.index = index
        self.devices = max(devices, index.jobs.devices)
        self.time = time
        jobs = index.jobs
        self.sent = int(np.searchsorted(jobs["start"], time, "right"))

    def __getitem__(self, name: str) -> Array:
        return self.index.jobs[name][: self.sent]

    @cached_property
    def known(self) -> Array:
        """Jobs whose dispatch could be read."""
        return np.asarray(self["device"] >= 0)

    @cached_property
    def ended(self) -> Array:
        """Jobs that had ended."""
        return np.asarray((self["outcome"] != UNDER_WAY) & (self["end"] <= self.time))

    @cached_property
    def uploaded(self) -> Array:
        """Jobs whose upload had arrived."""
        return np.asarray(self.ended & (self["outcome"] == UPLOADED))

    @cached_property
    def failed(self) -> Array:
        """Jobs that were lost."""
        return np.asarray(self.ended & (self["outcome"] > UPLOADED))

    @property
    def in_flight(self) -> int:
        """Jobs under way."""
        return int((~self.ended & self.known).sum())

    def newest(self, by: str, size: int, among: Array | None = None) -> Array:
        """For each device or slot (``by``) its last job, or -1."""
        keys, places = self[by], np.arange(self.sent)
        usable = self.known & (keys >= 0) & (keys < size)
        usable = usable if among is None else usable & among
        found = np.full(size, -1, dtype=np.int64)
        found[keys[usable]] = places[usable]  # the last of equal keys counts
        return found

    @cached_property
    def last(self) -> Array:
        """The last job of each device, or -1."""
        return self.newest("device", self.devices)

    @property
    def collecting(self) -> bool:
        """Whether a feature collection is under way."""
        begun = [starts for at, starts, _, _ in self.index.collections if at <= self.time]
        return begun.count(True) > begun.count(False)

    def states(self, away: Array | None) -> Array:
        """What each device does; ``away``: those known to be absent."""
        last, has = self.last, self.last >= 0
        state = np.full(self.devices, COLLECTING if self.collecting else IDLE, dtype=np.uint8)
        if self.sent:
            ended, failed, outcome = self.ended[last], self.failed[last], self["outcome"][last]
            state[has & failed] = LOST
            state[has & failed & (outcome == LEFT)] = LOST if away is not None else AWAY
            state[has & ~ended] = TRAINING
        if away is not None:
            state[away[: self.devices].nonzero()[0]] = AWAY
        return state

    def count(self, jobs: Array | None = None) -> Array:
        """How many jobs each device has, all or those marked in ``jobs``."""
        chosen = self.known if jobs is None else self.known & jobs
        return np.bincount(self["device"][chosen], minlength=self.devices)[: self.devices]

    def seen(self) -> Array:
        """When each device was last heard of; NaN: never."""
        place = self.newest("device", self.devices, self.ended)
        found = np.full(self.devices, np.nan)
        has = place >= 0
        found[has] = self["end"][place[has]]
        return found

    def joules(self, of_jobs: Array | None) -> Array:
        """Energy of each device's jobs that have ended."""
        if of_jobs is None:
            return np.full(self.devices, np.nan)
        counted = self.known & self.ended & np.isfinite(of_jobs)
        found = np.bincount(self["device"][counted], weights=of_jobs[counted], minlength=self.devices)
        return found[: self.devices]

    def now(self, name: str, empty: float) -> Array:
        """A column of the job that each device is working on; ``empty`` without one."""
        values = self.index.jobs[name]
        found = np.full(self.devices, empty, dtype=values.dtype)
        busy = self.busy
        found[busy] = values[self.last[busy]]
        return found

    @cached_property
    def busy(self) -> Array:
        """Devices that have a job."""
        has = self.last >= 0
        if not self.sent:
            return has
        return has & ~self.ended[self.last]


def tier_codes(tiers: Array, devices: int) -> Array:
    """The tier of each device; devices beyond those that the settings know have none."""
    found = np.full(devices, NO_TIER, dtype=np.uint8)
    found[: min(len(tiers), devices)] = tiers[:devices]
    return found


def packed(header: dict[str, Any], arrays: dict[str, Array], fields: Collection[str]) -> bytes:
    """Header and arrays as one answer; see docs/watch-api.md."""
    chosen = {name: arrays[name].astype(f"<{kind}") for name, kind in _TYPES.items() if name in fields}
    listed = [{"name": name, "type": _TYPES[name], "offset": 0, "length": len(array)} for name, array in chosen.items()]
    # The header's own length depends on the offsets in it: room for the longest of them.
    room = len(json.dumps(header | {"arrays": listed})) + 20 * len(listed)
    start = -(-(4 + room) // 8) * 8
    pieces = []
    for entry, array in zip(listed, chosen.values(), strict=True):
        entry["offset"] = start
        content = array.tobytes()
        content += bytes(-len(content) % 8)
        start += len(content)
        pieces.append(content)
    text = json.dumps(header | {"arrays": listed}).encode()
    size = -(-(4 + room) // 8) * 8 - 4
    return struct.pack("<I", size) + text.ljust(size) + b"".join(pieces)


FIELDS = tuple(_TYPES)
