"""What the page needs to know of an event log, kept in columns while the log grows."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

import numpy as np

from cabafl.watch.columns import Array, GrowingTable
from cabafl.watch.jobs import OTHER, OUTCOMES, UPLOADED, JobTable
from cabafl.watch.kinds import KindLog, Reader
from cabafl.watch.lines import Event, Piece, no_collector, parse
from cabafl.watch.quick import FIELDS

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

    def __init__(self, again: Reader) -> None:
        """``again`` reads lines of the log that were taken in before."""
        self._again = again
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
        with no_collector():
            piece = parse(content, start)
            self._count_before_publications(piece)
            # A job is sent before it ends, so that the order within a piece does not matter.
            for kind, places in sorted(piece.groups.items(), key=lambda each: (each[0] != "dispatch", each[1][0])):
                self._take_kind(kind, piece, places)
            if len(piece.time):
                self.time = max(self.time, float(piece.time[-1]))
            self.events += len(piece.begin)
            self.damaged += len(piece.begin) - len(piece.time)

    def _count_before_publications(self, piece: Piece) -> None:
        """How many uploads came before each publication: of equal times the order of the events tells."""
        none = np.empty(0, dtype=np.int64)
        published, uploaded = piece.groups.get("publish", none), piece.groups.get("upload", none)
        before = self.jobs.uploads + np.searchsorted(uploaded, published)
        self.uploads_before.append(len(published), {"uploads": before})

    def _take_kind(self, kind: str, piece: Piece, places: Array) -> None:
        self.counts[kind if kind in self.counts or len(self.counts) < MOST_KINDS else "other"] += len(places)
        if kind == "dispatch":
            self._sent(*_columns(piece, kind, {**FIELDS["dispatch"], "time": "f8"}))
        elif kind == "upload":
            self._uploaded(*_columns(piece, kind, {"job": "i8", "time": "f8", "staleness": "i8"}))
        take: Callable[[list[Event]], None] | None = {
            "loss": self._lost,
            "answer": self._answered,
            "collection": self._collected,
            "auto": self._tuned,
        }.get(kind)
        if take is not None:
            take(piece.events[kind])
        if kind in ("dispatch", "upload", "answer", *COUNTED_ONLY):
            return
        if kind not in self.kinds:
            if len(self.kinds) >= MOST_KINDS:
                return
            self.kinds[kind] = KindLog(self._again)
        self.kinds[kind].add(
            piece.events[kind],
            {
                "time": piece.time[places],
                "number": places + self.events,
                "offset": piece.begin[places],
                "size": piece.size[places],
            },
        )

    def _sent(self, values: dict[str, Array], bad: int) -> None:
        values = {"start": values["time"], **values}
        del values["time"]
        self.damaged += bad + self.jobs.send(values.pop("job"), values)

    def _uploaded(self, values: dict[str, Array], bad: int) -> None:
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


def _columns(piece: Piece, kind: str, kinds: Mapping[str, str]) -> tuple[dict[str, Array], int]:
    """Fields of all events of a kind as arrays, without the events that lack one; and how many these are."""
    found = piece.columns.get(kind)
    return _numbers(piece.events[kind], kinds) if found is None else ({name: found[name] for name in kinds}, 0)


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
