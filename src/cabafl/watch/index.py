"""What the page needs to know of an event log, kept in columns while the log grows."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter

import numpy as np

from cabafl.watch.columns import Array, GrowingTable
from cabafl.watch.jobs import OTHER, OUTCOMES, UPLOADED, JobTable
from cabafl.watch.kinds import KindLog
from cabafl.watch.lines import Event, Piece, parse

STALEST = 63  # staleness from here on is counted together
MOST_KINDS = 64
MOST_LISTED = 100_000  # collections, and values of settings that tune themselves
COUNTED_ONLY = ("evaluation", "ready", "fetch", "finish")  # nothing but their number is kept
# What the engine records; every other kind comes from the method.
OF_ENGINE = frozenset(
    (
        *("dispatch", "upload", "loss", "collection", "answer", "clip", "refuse", "change", "stop", "rest", "skip"),
        *("operator", *COUNTED_ONLY),
    )
)
_REASONS = {reason: code for code, reason in enumerate(OUTCOMES) if code > UPLOADED}


class EventIndex:
    """Takes in a log piece by piece."""

    def __init__(self) -> None:
        self.jobs = JobTable()
        self.kinds: dict[str, KindLog] = {}
        self.counts: Counter[str] = Counter()
        self.losses: Counter[str] = Counter()
        self.staleness = np.zeros(STALEST + 1, dtype=np.int64)
        self.staleness_sum = 0
        self.staleness_max: int | None = None
        self.collections: list[tuple[float, bool, int, int]] = []  # time, whether it starts, devices, missing
        self.tuned: list[tuple[float, str, float]] = []  # time, setting, value: settings that tune themselves
        self.uploads_before = GrowingTable({"uploads": ("i8", 0)})  # one row per publication
        self.events = 0
        self.time = 0.0  # of the last event
        self.damaged = 0  # lines that are not events

    @property
    def nbytes(self) -> int:
        """Memory of all columns."""
        return self.jobs.rows.nbytes + sum(log.nbytes for log in self.kinds.values())

    def take(self, content: bytes, start: int) -> None:
        """Adds complete lines, of which the first begins at byte ``start`` of the file."""
        with _no_collector():
            piece = parse(content, start)
            self._count_before_publications(piece)
            # A job is sent before it ends, so that the order within a piece does not matter.
            for kind in sorted(piece.groups, key=lambda kind: kind != "dispatch"):
                self._take_kind(kind, piece, piece.groups[kind])
            if piece.events:
                self.time = max(self.time, float(piece.time[-1]))
            self.events += len(piece.begin)
            self.damaged += len(piece.begin) - len(piece.events)

    def _count_before_publications(self, piece: Piece) -> None:
        """How many uploads came before each publication: of equal times the order of the events tells."""
        published, uploaded = piece.groups.get("publish", ()), piece.groups.get("upload", ())
        before = self.jobs.uploads + np.searchsorted(np.array(uploaded), np.array(published))
        self.uploads_before.append(len(published), {"uploads": before})

    def _take_kind(self, kind: str, piece: Piece, members: list[int]) -> None:
        group = [piece.events[member] for member in members]
        self.counts[kind if kind in self.counts or len(self.counts) < MOST_KINDS else "other"] += len(group)
        take: Callable[[list[Event]], None] | None = {
            "dispatch": self._sent,
            "upload": self._uploaded,
            "loss": self._lost,
            "answer": self._answered,
            "collection": self._collected,
            "auto": self._tuned,
        }.get(kind)
        if take is not None:
            take(group)
        if kind in ("dispatch", "upload", "answer", *COUNTED_ONLY):
            return
        if kind not in self.kinds:
            if len(self.kinds) >= MOST_KINDS:
                return
            self.kinds[kind] = KindLog()
        places = np.array(members)
        self.kinds[kind].add(
            group,
            {
                "time": piece.time[places],
                "number": places + self.events,
                "offset": piece.begin[places],
                "size": piece.size[places],
            },
        )

    def _sent(self, group: list[Event]) -> None:
        kinds = {"job": "i8", "device": "i8", "slot": "i8", "version": "i8", "time": "f8", "due": "f8"}
        values, bad = _numbers(group, kinds)
        values["start"] = values.pop("time")
        self.damaged += bad + self.jobs.send(values.pop("job"), values)

    def _uploaded(self, group: list[Event]) -> None:
        values, bad = _numbers(group, {"job": "i8", "time": "f8", "staleness": "i8"})
        stale = np.clip(values["staleness"], 0, 1 << 40)
        self.staleness += np.bincount(np.minimum(stale, STALEST), minlength=STALEST + 1)
        if len(stale):
            self.staleness_sum += int(stale.sum())
            self.staleness_max = max(self.staleness_max or 0, int(stale.max()))
        self.damaged += bad + self.jobs.upload(values["job"], values["time"], values["staleness"])

    def _lost(self, group: list[Event]) -> None:
        values, bad = _numbers(group, {"job": "i8", "time": "f8"})
        if bad:
            self.damaged += bad
            return
        reasons = [event.get("reason") for event in group]
        codes = [_REASONS.get(reason, OTHER) if isinstance(reason, str) else OTHER for reason in reasons]
        self.losses.update(OUTCOMES[code] for code in codes)
        self.damaged += self.jobs.end(values["job"], values["time"], np.array(codes))

    def _answered(self, group: list[Event]) -> None:
        values, bad = _numbers(group, {"job": "i8", "joules": "f8"})
        self.damaged += bad
        self.jobs.report(values["job"], values["joules"])

    def _collected(self, group: list[Event]) -> None:
        for event in group:
            devices, missing = event.get("devices"), event.get("missing")
            if isinstance(devices, int) and isinstance(missing, int) and len(self.collections) < MOST_LISTED:
                self.collections.append((float(event["time"]), event.get("step") == "start", devices, missing))

    def _tuned(self, group: list[Event]) -> None:
        for event in group:
            setting, value = event.get("setting"), event.get("value")
            if isinstance(setting, str) and isinstance(value, int | float) and len(self.tuned) < MOST_LISTED:
                self.tuned.append((float(event["time"]), setting[:100], value))


@contextmanager
def _no_collector() -> Iterator[None]:
    """A million small objects that are gone at once would make the collector of cycles run again and again."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _numbers(group: Sequence[Event], kinds: Mapping[str, str]) -> tuple[dict[str, Array], int]:
    """Fields of events as arrays, without the events that lack one; and how many these are. A float may be missing."""
    try:
        return {name: np.fromiter(map(itemgetter(name), group), kind, len(group)) for name, kind in kinds.items()}, 0
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    good = [event for event in group if all(_fits(event.get(name), kind) for name, kind in kinds.items())]
    found: dict[str, Array] = {}
    for name, kind in kinds.items():
        values = [float("nan") if event.get(name) is None else event[name] for event in good]
        found[name] = np.array(values, dtype=kind)
    return found, len(group) - len(good)


def _fits(value: object, kind: str) -> bool:
    if kind == "i8":
        return isinstance(value, int) and abs(value) < 1 << 62
    return value is None or (isinstance(value, int | float) and abs(value) < 1e300) or value != value
