"""The events of one kind: when, where in the file, and the numbers in them."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from cabafl.watch.columns import Array, GrowingTable
from cabafl.watch.lines import decode_again, no_collector

Reader = Callable[[int, int], bytes]  # the bytes of a file from a place on, so many

BLOCK = 1 << 20  # bytes of the file that are read at once
GAP = 64 << 10  # bytes between two events; to pass over more is quicker than to read them
MOST_ROWS = 40_000  # about as many short lines as fit into a block
MOST_FIELDS = 12  # numbers that are kept of each kind
_PLACES = {"time": ("f8", 0.0), "number": ("i8", 0), "offset": ("i8", 0), "size": ("i4", 0)}
LONGEST_NAME = 100  # letters; fields of longer names are not listed
_FIXED = ("time", "event")
_NUMBERS = {int, float, bool}


class KindLog:
    """Times and places of the events, and one column per field that is a number or a flag. A column is read from the
    file when it is first asked for, like the rest of an event when it is shown."""

    def __init__(self, again: Reader) -> None:
        self.rows = GrowingTable(_PLACES)
        self.fields: dict[str, str] = {}  # number | flag | text | list | other
        self._again = again
        self._columns: dict[str, GrowingTable] = {}  # those read so far may be shorter

    def __len__(self) -> int:
        return self.rows.length

    @property
    def nbytes(self) -> int:
        """Memory of all columns."""
        return self.rows.nbytes + sum(column.nbytes for column in self._columns.values())

    def add(self, events: Sequence[dict[str, Any]], places: dict[str, Array]) -> None:
        """Adds events with their ``number``, ``offset``, ``size`` and ``time``; ``events`` has the first and the last
        of them."""
        self._meet(events[0])
        self._meet(events[-1])
        self.rows.append(len(places["time"]), places)

    def _meet(self, event: dict[str, Any]) -> None:
        """Learns the fields of an event."""
        for name, value in event.items():
            if name in self.fields or name in _FIXED or len(name) > LONGEST_NAME:
                continue
            if len(self.fields) >= 4 * MOST_FIELDS:
                continue
            self.fields[name] = kind = _kind(value)
            if kind in ("number", "flag") and len(self._columns) < MOST_FIELDS:
                self._columns[name] = GrowingTable({name: ("f8", float("nan"))})

    def values(self, name: str) -> Array | None:
        """The column of a field; None if it has none."""
        if name not in self._columns:
            return None
        while (first := self._columns[name].length) < len(self):
            others = [other for other, column in self._columns.items() if column.length == first]
            if not self._read(first, others):
                # The file is away, or cannot be opened now: another time it may be there again.
                return np.append(self._columns[name][name], np.full(len(self) - first, np.nan))
        return self._columns[name][name]

    def _read(self, first: int, names: Sequence[str]) -> bool:
        """Reads some more rows of columns from the file; False if they are not there."""
        rows = slice(first, first + MOST_ROWS)
        begin = self.rows["offset"][rows]
        end = begin + self.rows["size"][rows]
        count = int(np.searchsorted(end, begin[0] + BLOCK, "right"))
        far = np.flatnonzero(begin[1:count] - end[: max(0, count - 1)] > GAP)
        count = max(1, int(far[0]) + 1 if len(far) else count)
        start, length = int(begin[0]), int(end[count - 1] - begin[0])
        block = self._again(start, length)
        if len(block) < length:
            return False
        begins, ends = (begin[:count] - start).tolist(), (end[:count] - start).tolist()
        with no_collector():
            events = decode_again([block[a:b] for a, b in zip(begins, ends, strict=True)])
            for name in names:
                self._columns[name].append(count, {name: _column(events, name)})
        return True

    def upto(self, time: float) -> int:
        """How many events happened up to a time."""
        return int(np.searchsorted(self.rows["time"], time, "right"))


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "list" if isinstance(value, list) else "other"


def _column(events: Sequence[dict[str, Any]], name: str) -> Array:
    try:
        values = list(map(itemgetter(name), events))
        if set(map(type, values)) <= _NUMBERS:
            return np.fromiter(values, np.float64, len(values))
    except (KeyError, OverflowError):
        pass
    return np.fromiter((_number(event.get(name)) for event in events), np.float64, len(events))


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        return float("nan")
    try:
        return float(value)
    except OverflowError:
        return float("nan")
