"""One run folder that is watched."""

import itertools
import threading
import time
from typing import Any, Literal

from cabafl.fleet import Faults
from cabafl.recording.folder import ENVIRONMENT, EVENTS, EXPERIMENT, SUMMARY
from cabafl.recording.version_0_1 import translate_summary
from cabafl.watch.absences import MOST, Absences
from cabafl.watch.evaluations import Evaluations
from cabafl.watch.facts import LARGEST_JSON, RunFacts, read_json
from cabafl.watch.index import EventIndex
from cabafl.watch.locks import Locks
from cabafl.watch.pace import Pace, PaceSample
from cabafl.watch.places import Place
from cabafl.watch.tail import Rewound, Tail

QUIET = 60.0  # seconds without a line after which a run may be stalled
QUIET_GAPS = 10.0  # ... and this many times the usual time between two evaluations
MOST_EVENTS = 20_000_000  # of one run, a gigabyte of memory; what comes after them is not read
FRESH = 15.0  # seconds: who has written just now is running, whatever the table of locks says
_generations = itertools.count(int(time.time()))  # also after a restart no number comes again
State = Literal["running", "finished", "stalled", "failed"]


class WatchedRun:
    """Follows the files of a run. ``lock`` is held while it reads, and by whoever wants figures that belong
    together."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.id = place.id
        self.lock = threading.RLock()
        self.generation = next(_generations)
        self.state: State = "running"
        self.detail = ""
        self.facts = RunFacts()
        self.summary: dict[str, Any] | None = None
        self.evaluations = Evaluations(place)
        self.index = EventIndex(self.event_bytes)
        self.asked = float("-inf")  # when somebody last looked at it, on the monotonic clock
        self.pace = Pace()
        self.looks = 0  # grows with everything that may change a figure
        self.next_look = float("-inf")  # on the monotonic clock
        self._events = Tail(place, EVENTS)
        self._absences: tuple[tuple[Faults, int], Absences] | None = None
        self._unreadable = False
        self._versions: tuple[object, ...] = ()  # of the files that are read as a whole

    # Following

    def follow(self, locks: Locks) -> None:
        """Takes in what has changed, but for the event log."""
        with self.lock:
            self.looks += 1
            self._read_whole_files()
            now = time.time()
            try:
                self._events.look()
            except Rewound:
                self._begin_again()
            held = locks.holds(self._events.inode)
            try:
                self.evaluations.follow(self._elapsed(now) if held else None)
            except Rewound:
                self._begin_again()
            self.state, self.detail = self._judge(held, locks.known, now)
            if self.state == "running":
                self.pace.see(PaceSample(time.monotonic(), self.uploads, self.index.events, self.progress))
            else:
                self.pace.forget()

    def read_events(self) -> bool:
        """Takes in one piece of the event log; whether there is more."""
        with self.lock:
            try:
                content, start = self._events.lines()
            except Rewound:
                self._begin_again()
                return True
            if content:
                self.looks += 1
                self.index.take(content, start)
            return bool(content) and self.behind

    def give_up(self, error: Exception) -> None:
        """Its record has something in it that this program cannot read: says so, and reads no more of its events."""
        with self.lock:
            self.state, self.detail = "failed", f"cannot be shown: {type(error).__name__}: {error}"[:300]
            self._unreadable = True
            self.looks += 1

    def forget_events(self) -> None:
        """Gives the memory of the index back; it is read again when somebody looks at the run."""
        with self.lock:
            self.index = EventIndex(self.event_bytes)
            self._events.restart()
            self.looks += 1

    @property
    def behind(self) -> bool:
        """Whether the event log has more than was read, and is to be read."""
        more = self._events.size > self._events.position and not self._unreadable
        return more and self.index.events < MOST_EVENTS

    @property
    def indexed(self) -> float:
        """How much of the event log was read, 0 to 1."""
        return self._events.share

    def event_bytes(self, offset: int, size: int) -> bytes:
        """A line of the event log again."""
        return self._events.piece(offset, size)

    def _begin_again(self) -> None:
        self.generation = next(_generations)
        self.index = EventIndex(self.event_bytes)
        self._unreadable = False
        self._events.restart()
        self.pace.forget()

    def _read_whole_files(self) -> None:
        names = (EXPERIMENT, ENVIRONMENT, SUMMARY)
        stats = [self.place.stat(name) for name in names]
        versions = tuple(stat and (stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)
        if versions == self._versions:
            return
        self._versions = versions
        self.facts = RunFacts.read(self.place)
        found = read_json(self.place, SUMMARY, LARGEST_JSON)
        self.summary = None if found is None else translate_summary(found)

    def _judge(self, held: bool, known: bool, now: float) -> tuple[State, str]:
        if self.summary is not None:
            return "finished", self.facts.problem
        quiet = now - max(self._events.changed, self.evaluations.tail.changed)
        if not held and (known or quiet > QUIET) and quiet > FRESH:
            return "failed", self._why()
        gap = (self._elapsed(now) or 0.0) / max(len(self.evaluations), 1)
        if quiet > max(QUIET, QUIET_GAPS * gap):
            return "stalled", f"nothing written for {quiet:,.0f} s"
        return "running", self.facts.problem

    def _why(self) -> str:
        """What a comparison has kept of the output of its run, or what can be done."""
        *parents, name = self.place.parts or (None,)
        if name is not None:
            text = Place(self.place.root, tuple(parents)).read(f"{name}.log", 1 << 20) or b""
            lines = [line.strip() for line in text.decode("utf-8", errors="replace").splitlines() if line.strip()]
            if lines:
                return lines[-1][:300]
        return "no process writes it; cabafl resume continues it"

    def _elapsed(self, now: float) -> float | None:
        return None if self.facts.started is None else max(0.0, now - self.facts.started)

    def absences(self, devices: int) -> Absences | None:
        """When the simulated devices are away, if that follows from the seed."""
        faults = self.facts.faults
        if faults is None or devices > MOST:  # each is away at least once
            return None
        if self._absences is None or self._absences[0] != (faults, devices):
            self._absences = (faults, devices), Absences(faults, devices)
        return self._absences[1]

    # Figures

    @property
    def time(self) -> float:
        """How far the run is on its clock."""
        return max(self.index.time, self.evaluations.last("time") or 0.0)

    @property
    def progress(self) -> float | None:
        """Share done, 0 to 1."""
        if self.summary is not None:
            return 1.0
        shares = []
        if self.facts.end:
            shares.append(self.time / self.facts.end)
        if (most := self.facts.number("run.max_dispatches")) is not None:
            shares.append(self.dispatches / most)
        return min(1.0, max(shares)) if shares else None

    @property
    def _read(self) -> bool:
        """Whether all of the event log was read; else counts are those of the last evaluation."""
        return self.indexed == 1 and self.index.events > 0

    @property
    def dispatches(self) -> int:
        """Jobs sent."""
        return self.index.counts["dispatch"] if self._read else int(self.evaluations.last("downloads") or 0)

    @property
    def uploads(self) -> int:
        """Models that came back, discarded ones included."""
        if not self._read:
            return int(self.evaluations.last("uploads") or 0)
        return self.index.counts["upload"] + self.index.losses["rejected"] + self.index.losses["stale"]

    @property
    def losses(self) -> dict[str, int]:
        """Jobs lost, by reason."""
        if self.index.events or self.summary is None:
            return dict(self.index.losses)
        found = self.summary.get("losses")
        counts = found.items() if isinstance(found, dict) else ()
        return {str(key): value for key, value in counts if isinstance(value, int)}

    @property
    def wall_seconds(self) -> float | None:
        """Real seconds from its start to its last line, or to its end."""
        if self.facts.clock == "wall":
            return self.time
        seconds = (self.summary or {}).get("wall_seconds")
        if isinstance(seconds, int | float):
            return float(seconds)
        return self._elapsed(self._events.changed) if self._events.changed else None

    def _speeds(self) -> tuple[float | None, float | None]:
        if self.state in ("running", "stalled"):
            return self.pace.rates()
        seconds = self.wall_seconds
        if not seconds:
            return None, None
        return self.uploads / seconds, self.index.events / seconds if self._read else None

    def _left(self) -> float | None:
        progress = self.progress
        if self.state != "running" or progress is None:
            return None
        left, elapsed = self.pace.left(), self._elapsed(time.time())
        if left is None and elapsed and progress > 0:
            left = elapsed * (1.0 - progress) / progress
        return left

    def _in_flight(self) -> int | None:
        if self.state not in ("running", "stalled"):
            return 0
        return self.index.jobs.in_flight if self._read else None

    def row(self) -> dict[str, Any]:
        """The run in the overview."""
        with self.lock:
            rows = self.evaluations
            jobs, events = self._speeds()
            return self.facts.described() | {
                "id": self.id,
                "name": self.place.name,
                "root": Place(self.place.root).name,
                "state": self.state,
                "detail": self.detail,
                "updated": max(self._events.changed, rows.tail.changed) or None,
                "time": self.time,
                "progress": self.progress,
                "left": self._left(),
                "value": rows.last("value"),
                "averaged_value": rows.last("averaged_value"),
                "best": rows.best(self.facts.metric.more_is_better),
                "loss": rows.last("loss"),
                "version": int(rows.last("version") or 0),
                "uploads": self.uploads,
                "lost": sum(self.losses.values()),
                "in_flight": self._in_flight(),
                "transfers": int(rows.last("transfers") or 0),
                "bytes": int(rows.last("bytes") or 0),
                "joules": rows.last("joules"),
                "jobs_per_second": jobs,
                "events_per_second": events,
                "spark": rows.spark(),
                "rows": len(rows),
                "events": self.index.events,
                "indexed": self.indexed,
                "generation": self.generation,
            }
