"""The evaluations of a run, from ``metrics.csv``."""

import numpy as np

from cabafl.recording.folder import METRICS
from cabafl.watch.columns import Array, GrowingTable
from cabafl.watch.places import Place
from cabafl.watch.tail import Rewound, Tail

MOST_COLUMNS = 64
MOST_ROWS = 500_000
MOST_PIECES = 8  # of the file that one look reads: other runs are waiting
COUNTS = ("version", "downloads", "uploads", "feature_downloads", "transfers", "bytes")
SPARK = 40  # values of a sparkline
_RENAMED = {"virtual_time": "time", "t": "time", "aggregation": "version"}  # of version 0.1


class Evaluations:
    """Follows the file; ``rows`` has its columns, the metric as ``value``."""

    def __init__(self, place: Place) -> None:
        self.tail = Tail(place, METRICS)
        self._clear()

    def _clear(self) -> None:
        self.metric = ""  # the name in the file
        self.rows = GrowingTable({})
        self.seen: list[tuple[int, float]] = []  # rows that were there, and the real seconds of the run at that moment

    def __len__(self) -> int:
        return self.rows.length

    def follow(self, elapsed: float | None) -> bool:
        """Reads what is new; ``elapsed``: real seconds since the run started, if a process writes it now. Returns
        whether there was something. Raises `Rewound`, after which everything is read again."""
        before = len(self)
        try:
            if not self.tail.look() or before >= MOST_ROWS:
                return False
            for _ in range(MOST_PIECES):
                content, _ = self.tail.lines()
                self._take(content)
                if not content or self.tail.share == 1:
                    break
        except Rewound:
            self._clear()
            raise
        if elapsed is not None and len(self) > before:
            self.seen.append((len(self), elapsed))
        return len(self) > before

    def _take(self, content: bytes) -> None:
        lines = content.decode("utf-8", errors="replace").splitlines()
        if not self.rows.names and lines:
            self._begin(lines.pop(0).split(",")[:MOST_COLUMNS])
        width = len(self.rows.names)
        found: list[list[float]] = []
        for line in lines:
            try:
                row = [float(text) for text in line.split(",")]
            except ValueError:
                continue
            if len(row) == width and len(self) + len(found) < MOST_ROWS:
                found.append(row)
        if found:
            table = np.array(found)
            self.rows.append(len(found), {name: table[:, place] for place, name in enumerate(self.rows.names)})

    def _begin(self, header: list[str]) -> None:
        self.metric = header[2] if len(header) > 2 else ""
        renamed = {**_RENAMED, self.metric: "value", f"averaged_{self.metric}": "averaged_value"}
        for name in header:
            self.rows.add(renamed.get(name, name)[:100], "f8", float("nan"))

    def last(self, name: str) -> float | None:
        """The newest value of a column; None if there is none, or it is not finite."""
        if name not in self.rows or not len(self):
            return None
        return finite(self.rows[name][-1])

    def best(self, more_is_better: bool) -> float | None:
        """The best value of the metric."""
        values = self._values()
        values = values[np.isfinite(values)]
        if not len(values):
            return None
        return float(values.max() if more_is_better else values.min())

    def spark(self) -> Array:
        """A few values of the metric, evenly spaced."""
        values = self._values()
        return values[thinned(len(self), SPARK)] if len(values) else values

    def _values(self) -> Array:
        """The metric of the models that count: of the averaged ones, if there are any."""
        name = next((name for name in ("averaged_value", "value") if name in self.rows), None)
        return np.empty(0) if name is None else self.rows[name]

    def wall(self, seconds: float | None) -> tuple[Array, str]:
        """Real seconds of each row, and how they are known; ``seconds``: those of the whole run so far."""
        length = len(self)
        if not length or "time" not in self.rows:
            return np.empty(0), "estimated"
        done = np.arange(length) * 1e-3
        if "uploads" in self.rows:
            done = done + np.maximum.accumulate(np.nan_to_num(self.rows["uploads"]))
        known = [(0, 0.0), *((rows - 1, at) for rows, at in self.seen)]
        if seconds is not None and (not self.seen or self.seen[-1][0] < length):
            known.append((length - 1, seconds))
        places, at = np.array([place for place, _ in known]), np.array([second for _, second in known])
        measured = len(self.seen) > 1 and self.seen[0][0] <= max(1.0, 0.1 * length)
        return np.interp(done, done[places], np.maximum.accumulate(at)), "measured" if measured else "estimated"

    def columns(self, since: int, points: int, wall: Array) -> dict[str, Array]:
        """Rows from ``since`` on, thinned out to ``points``, the last included."""
        since = min(max(since, 0), len(self))
        places = since + thinned(len(self) - since, points)
        found = {name: self.rows[name][places] for name in self.rows.names}
        for name in COUNTS:
            if name in found and np.isfinite(found[name]).all():
                found[name] = found[name].astype(np.int64)
        return found | {"wall": wall[places]}


def thinned(length: int, points: int) -> Array:
    """At most ``points`` places among ``length``, evenly spaced, the last included."""
    if length <= points:
        return np.arange(length)
    return np.unique(np.linspace(0, length - 1, max(points, 1)).round().astype(np.int64))


def finite(value: float) -> float | None:
    """A number for JSON."""
    return float(value) if np.isfinite(value) else None
