"""The page of a method, from the events it has recorded. All functions are called with the run's lock held."""

from typing import Any

import numpy as np

from cabafl.watch.columns import Array
from cabafl.watch.evaluations import thinned
from cabafl.watch.index import OF_ENGINE
from cabafl.watch.jobs import MOST
from cabafl.watch.kinds import KindLog
from cabafl.watch.lines import Event
from cabafl.watch.moment import Moment
from cabafl.watch.views import events, read_event
from cabafl.watch.watched import WatchedRun

RECENT = 20  # events
LAST_VERSIONS = 50
MOST_VISITED = 256  # slots whose visited devices are listed
MOST_DEVICES = 200  # in a list


class MethodView:
    """A method at ``time``, or now if that is None."""

    def __init__(self, run: WatchedRun, time: float | None) -> None:
        self.run = run
        self.time = run.time if time is None else min(max(time, 0.0), run.time)
        self.moment = Moment(run.index, run.facts.devices, self.time)
        self.slots = max(run.index.jobs.slots, run.facts.slots or 0) if len(run.index.jobs) else 0
        self.published = run.index.kinds.get("publish", KindLog(run.event_bytes))
        self.versions = self.published.upto(self.time)

    def page(self) -> dict[str, Any]:
        """See docs/watch-api.md."""
        run, index = self.run, self.run.index
        kinds = [kind for kind in index.kinds if kind not in OF_ENGINE]
        last = self._last_published()
        cabafl = run.facts.method == "cabafl" and "cache" in index.kinds
        noted = [kind for kind in kinds if kind != "publish"]
        recent = events(run, noted, None, RECENT, self.time)["events"] if noted else []
        return {
            "generation": run.generation,
            "time": self.time,
            "name": run.facts.method,
            "page": "cabafl" if cabafl else "generic",
            "version": self.versions,
            "settings": self.settings(),
            "kinds": [self._kind(kind, index.kinds[kind]) for kind in kinds],
            "recent": recent,
            "published": last,
            "since_published": self._since_published(),
            "per_version": self._per_version(),
            "slots": self._slots(),
            "cabafl": self._cabafl(last) if cabafl else None,
        }

    def settings(self) -> dict[str, Any]:
        """The method's keys; those that tune themselves as they were at that time, None before the first value."""
        keys = self.run.facts.settings.items()
        found = {key.removeprefix("method."): value for key, value in keys if key.startswith("method.")}
        found.pop("name", None)
        tuned = {setting: value for at, setting, value in self.run.index.tuned if at <= self.time}
        return {key: tuned.get(key) if value == "auto" and key in _TUNABLE else value for key, value in found.items()}

    def _kind(self, kind: str, log: KindLog) -> dict[str, Any]:
        count = log.upto(self.time)
        last = float(log.rows["time"][count - 1]) if count else None
        return {"kind": kind, "count": count, "last": last, "fields": log.fields}

    def _last_published(self) -> Event | None:
        if not self.versions:
            return None
        rows, place = self.published.rows, self.versions - 1
        return read_event(
            self.run, int(rows["number"][place]), int(rows["offset"][place]), int(rows["size"][place]), longest=100_000
        )

    def _since_published(self) -> dict[str, Any]:
        moment, before = self.moment, self.run.index.uploads_before["uploads"]
        since = int(before[self.versions - 1]) if self.versions else 0
        places = (moment.uploaded & (moment["order"] >= since)).nonzero()[0]
        order = np.argsort(moment["order"][places])
        return {"uploads": len(places), "devices": moment["device"][places[order][-MOST_DEVICES:]]}

    def _per_version(self) -> Array:
        """Uploads between two publications."""
        before = self.run.index.uploads_before["uploads"][: self.versions]
        return np.diff(before, prepend=0)[-LAST_VERSIONS:]

    def _slots(self) -> dict[str, Any]:
        moment, slots = self.moment, self.slots
        last = moment.newest("slot", slots)
        busy = (last >= 0) & ~moment.ended[last] if moment.sent else last >= 0
        back = moment.newest("slot", slots, moment.uploaded)
        counted = moment.uploaded & (moment["slot"] >= 0)
        return {
            "slot": np.arange(slots),
            "device": _of(moment["device"], last, busy, -1),
            "job": np.where(busy, last, -1),
            "since": _of(moment["start"], last, busy, np.nan),
            "due": _of(moment["due"], last, busy, np.nan),
            "uploads": np.bincount(moment["slot"][counted], minlength=slots)[:slots],
            "last": _of(moment["end"], back, back >= 0, np.nan),
            "visited": self._visited() if slots <= MOST_VISITED else None,
        }

    def _visited(self) -> list[Array] | None:
        """The devices of each slot since it last published; None if publications do not name a slot."""
        by_slot = self._slot_published("time")
        if by_slot is None:
            return None
        moment, found = self.moment, []
        for slot, since in enumerate(by_slot):
            own = (moment["slot"] == slot) & (moment["start"] >= since) & ~moment.failed
            found.append(moment["device"][own.nonzero()[0][-MOST_DEVICES:]])
        return found

    def _slot_published(self, column: str) -> Array | None:
        """For each slot, time or number of its last publication, -1 before it; None if they do not name a slot."""
        slot = self.published.values("slot")
        if slot is None:
            return None
        found = np.full(self.slots, -1.0)
        keys = _numbers_below(slot[: self.versions], self.slots)
        inside = keys >= 0
        found[keys[inside]] = self.published.rows[column][: self.versions][inside]
        return found

    # CaBaFL

    def _cabafl(self, last: Event | None) -> dict[str, Any]:
        log, settings, slots = self.run.index.kinds["cache"], self.settings(), self.slots
        count = log.upto(self.time)
        columns = {name: log.values(name) for name in ("slot", "trained", "similarity", "rank", "length", "accepted")}
        if any(column is None for column in columns.values()):
            return {}
        taken: dict[str, Array] = {name: column[:count] for name, column in columns.items() if column is not None}
        keys = _numbers_below(taken["slot"], slots)
        inside = keys >= 0
        places, accepted = np.full(slots, -1), np.full(slots, -1)
        places[keys[inside]] = inside.nonzero()[0]
        entered = inside & (taken["accepted"] == 1)
        accepted[keys[entered]] = entered.nonzero()[0]
        aggregated = self._slot_published("number")
        aggregated = np.full(slots, -1.0) if aggregated is None else aggregated
        fresh = (places >= 0) & (log.rows["number"][places] > aggregated) if count else places >= 0
        row = {name: _of(values, places, fresh, np.nan) for name, values in taken.items()}
        k, gamma, screening = settings.get("k"), settings.get("gamma"), settings.get("l1_cache", True)
        weights = last.get("weights") if last else None
        return {
            "k": k,
            "gamma": gamma,
            "screening": screening,
            "trained": _numbers_below(np.nan_to_num(row["trained"]), MOST),
            **{name: row[name] for name in ("similarity", "rank", "length")},
            "accepted": [bool(value) if value == value else None for value in row["accepted"].tolist()],
            "why": [_why(*each, k, bool(screening)) for each in zip(row["accepted"], row["trained"], strict=True)],
            "weight": weights if isinstance(weights, list) and len(weights) == slots else [None] * slots,
            "l1": _of(log.rows["time"], accepted, accepted >= 0, np.nan),
            "aggregation": None if last is None else {key: last.get(key) for key in ("time", "version", "slot")},
        }

    def series(self, kind: str, name: str, by: str | None, points: int) -> dict[str, Any] | None:
        """A number that the method records; None if it records none of that name."""
        log = self.run.index.kinds.get(kind)
        values = None if log is None else log.values(name)
        if log is None or values is None:
            return None
        count = log.upto(self.time)
        places = thinned(count, points)
        beside = log.values(by) if by else None
        return {
            "generation": self.run.generation,
            "kind": kind,
            "field": name,
            "total": count,
            "time": log.rows["time"][places],
            "value": values[places],
            "by": None if beside is None else beside[places],
        }


_TUNABLE = frozenset(("k", "alpha", "gamma", "sigma", "m"))


def _numbers_below(values: Array, size: int) -> Array:
    """Whole numbers from 0; -1 for anything else."""
    return np.where((values >= 0) & (values < size), values, -1).astype(np.int64)


def _of(values: Array, places: Array, chosen: Array, empty: float) -> Array:
    """``values[places]`` where ``chosen``, else ``empty``."""
    found = np.full(len(places), empty, dtype=values.dtype)
    found[chosen] = values[places[chosen]]
    return found


def _why(accepted: float, trained: float, k: object, screening: bool) -> str | None:
    """Why an upload entered L1, or did not."""
    if accepted != accepted:
        return None
    if not screening:
        return "no screening"
    if not accepted:
        return "dissimilar"
    return "late" if isinstance(k, int | float) and trained > k / 2 else "similar"
