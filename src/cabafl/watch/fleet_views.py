"""What the page shows of the devices of a run. All functions are called with the run's lock held."""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from cabafl.watch.columns import Array
from cabafl.watch.jobs import OUTCOMES, REJECTED, STALE, UNDER_WAY
from cabafl.watch.moment import AWAY, IDLE, STATES, TRAINING, Moment, packed, tier_codes
from cabafl.watch.standing import WatchedFleet
from cabafl.watch.watched import WatchedRun

MEDIAN_JOBS = 10  # a timeline spans this many times the median job
LAST_JOBS = 100  # of one device


class FleetView:
    """A run at ``time``, or now if that is None. ``fleet`` is the folder of its real devices, if that is watched."""

    def __init__(self, run: WatchedRun, time: float | None, fleet: WatchedFleet | None) -> None:
        self.run = run
        self.newest = time is None or time >= run.time
        self.time = run.time if time is None else min(max(time, 0.0), run.time)
        self.fleet = fleet if fleet is not None and self.newest and fleet.live else None
        self.moment = Moment(run.index, run.facts.devices, self.time)

    def at(self) -> dict[str, Any]:
        """Counts at that time."""
        moment, rows = self.moment, self.run.evaluations
        times = rows.rows["time"] if "time" in rows.rows else np.empty(0)
        published = self.run.index.kinds.get("publish")
        outcome = moment["outcome"][moment.failed]
        return {
            "generation": self.run.generation,
            "time": self.time,
            "row": int(np.searchsorted(times, self.time, "right")) - 1,
            "version": 0 if published is None else published.upto(self.time),
            "dispatches": int(moment.known.sum()),
            "uploads": int((moment.uploaded.sum()) + np.isin(outcome, (REJECTED, STALE)).sum()),
            "in_flight": moment.in_flight,
            "losses": {OUTCOMES[code]: int((outcome == code).sum()) for code in np.unique(outcome)},
            "devices": self._counts(self._states()),
        }

    def _states(self) -> Array:
        states = self.moment.states(self._away())
        if self.fleet is not None:  # newer than the events, which are written now and then
            training = self._live("job", -1) >= 0
            states[(states == TRAINING) & ~training] = IDLE
            states[training & (states != AWAY)] = TRAINING
        return states

    def _live(self, key: str, empty: float) -> Array:
        """What the server of real devices says of each one."""
        assert self.fleet is not None
        found = np.full(self.moment.devices, empty)
        for line in self.fleet.devices():
            value = line.get(key)
            if 0 <= line["device"] < len(found) and isinstance(value, int | float):
                found[line["device"]] = value
        return found

    def _now(self, column: str, key: str, empty: float) -> Array:
        """A column of the job that each device is working on."""
        return self.moment.now(column, empty) if self.fleet is None else self._live(key, empty)

    def _away(self) -> Array | None:
        """Absent devices: what the server says now, or what follows from the seed."""
        devices = self.moment.devices
        if self.fleet is not None:
            away = np.ones(devices, dtype=bool)
            online = [line["device"] for line in self.fleet.devices() if line.get("online")]
            away[[device for device in online if 0 <= device < devices]] = False
            return away
        absences = self.run.absences(devices)
        return None if absences is None else absences.at(self.time)

    @staticmethod
    def _counts(states: Array) -> dict[str, int]:
        return dict(zip(STATES, np.bincount(states, minlength=len(STATES)).tolist(), strict=True))

    def joules_of_jobs(self) -> Array | None:
        """Energy of the jobs sent so far; None if it is unknown."""
        moment, jobs = self.moment, self.run.index.jobs
        if "joules" in jobs.rows:
            return moment["joules"].astype(np.float64)
        seconds = np.where(np.isfinite(moment["due"]), moment["due"], moment["end"]) - moment["start"]
        seconds = np.minimum(seconds, np.where(moment.ended, moment["end"] - moment["start"], np.inf))
        rows = self.run.evaluations
        transfers, size = rows.last("transfers"), rows.last("bytes")
        return self.run.facts.joules(moment["device"], seconds, size / transfers if size and transfers else None)

    def packed(self, fields: Collection[str]) -> bytes:
        """One entry per device, as binary arrays."""
        moment, facts = self.moment, self.run.facts
        states, tiers = self._states(), tier_codes(facts.tier_of, moment.devices)
        selections = moment.count()
        wanted: dict[str, Callable[[], Array]] = {
            "state": lambda: states,
            "tier": lambda: tiers,
            "slot": lambda: self._now("slot", "slot", -1),
            "job": self._jobs,
            "since": lambda: self._now("start", "since", np.nan),
            "due": lambda: moment.now("due", np.nan),
            "selections": lambda: selections,
            "seen": self._seen,
            "joules": lambda: moment.joules(self.joules_of_jobs()),
            "lost": lambda: moment.count(moment.failed),
        }
        arrays = {name: make() for name, make in wanted.items() if name in fields}
        total = float(np.nansum(arrays["joules"])) if "joules" in arrays else None
        rows = tiers if facts.tiers else np.zeros(moment.devices, dtype=np.uint8)
        table = np.zeros((max(len(facts.tiers), 1), len(STATES)), dtype=np.int64)
        inside = rows < len(table)
        np.add.at(table, (rows[inside], states[inside]), 1)
        header = {
            "generation": self.run.generation,
            "time": self.time,
            "devices": moment.devices,
            "live": self.fleet is not None,
            "states": STATES,
            "tiers": facts.tiers,
            "counts": self._counts(states),
            "by_tier": table.tolist(),
            "most_selected": int(selections.max(initial=0)),
            "joules": total,
        }
        return packed(header, arrays, fields)

    def _jobs(self) -> Array:
        moment = self.moment
        return np.where(moment.busy, moment.last, -1) if self.fleet is None else self._live("job", -1)

    def _seen(self) -> Array:
        found = self.moment.seen()
        if self.fleet is None:
            return found
        status = self.fleet.status
        seconds, updated = status.get("seconds"), status.get("updated")
        if not isinstance(seconds, int | float) or not isinstance(updated, int | float):
            return found
        live = self._live("seen", np.nan)
        return np.where(np.isfinite(live), seconds - (updated - live), found)

    def timeline(self, seconds: float | None, first: int, devices: int | None, limit: int) -> dict[str, Any]:
        """The jobs that were under way in the last ``seconds``."""
        moment = self.moment
        start, end, device = moment["start"], moment["end"], moment["device"]
        if seconds is None:
            took = (end - start)[moment.uploaded][-1000:]
            seconds = MEDIAN_JOBS * float(np.median(took)) if len(took) else 60.0
        begin = max(0.0, self.time - seconds)
        chosen = moment.known & (~moment.ended | (end >= begin)) & (device >= first)
        if devices is not None:
            chosen &= device < first + devices
        places = chosen.nonzero()[0]
        outcome = np.where(moment.ended, moment["outcome"], UNDER_WAY)
        ends = np.where(moment.ended, end, moment["due"])
        shown = places[-limit:]
        return {
            "generation": self.run.generation,
            "from": begin,
            "to": self.time,
            "total": len(places),
            "outcomes": OUTCOMES,
            "job": shown,
            "device": device[shown],
            "slot": moment["slot"][shown],
            "version": moment["version"][shown],
            "start": start[shown],
            "end": ends[shown],
            "outcome": outcome[shown],
        }

    def device(self, number: int) -> dict[str, Any] | None:
        """One device; None if there is none of this number."""
        moment, facts = self.moment, self.run.facts
        if not 0 <= number < moment.devices:
            return None
        own = (moment["device"] == number).nonzero()[0]
        last, ended = own[-LAST_JOBS:], moment.ended
        joules = self.joules_of_jobs()
        stale = moment["staleness"][last].astype(np.float64)
        tier = tier_codes(facts.tier_of, moment.devices)[number]
        status = next((line for line in self.fleet.devices() if line["device"] == number), None) if self.fleet else None
        return {
            "generation": self.run.generation,
            "device": number,
            "tier": facts.tiers[tier] if tier < len(facts.tiers) else None,
            "state": STATES[self._states()[number]],
            "selections": len(own),
            "lost": int(moment.failed[own].sum()),
            "joules": None if joules is None else float(np.nansum(joules[own][ended[own]])),
            "seen": float(self._seen()[number]),
            "outcomes": OUTCOMES,
            "jobs": {
                "job": last,
                "slot": moment["slot"][last],
                "start": moment["start"][last],
                "end": np.where(ended[last], moment["end"][last], moment["due"][last]),
                "outcome": np.where(ended[last], moment["outcome"][last], UNDER_WAY),
                "staleness": np.where(moment.uploaded[last] & (stale >= 0), stale, np.nan),
            },
            "status": status,
        }
