"""The events of one kind: when, where in the file, and the numbers in them."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from cabafl.watch.columns import Array, GrowingTable

MOST_FIELDS = 12  # numbers that are kept of each kind
_PLACES = {"time": ("f8", 0.0), "number": ("i8", 0), "offset": ("i8", 0), "size": ("i4", 0)}
LONGEST_NAME = 100  # letters; fields of longer names are not listed
_FIXED = ("time", "event")


class KindLog:
    """Times and places of the events, and one column per field that is a number or a flag. The rest of an event is read
    again from the file when it is shown."""

    def __init__(self) -> None:
        self.rows = GrowingTable(_PLACES)
        self.fields: dict[str, str] = {}  # number | flag | text | list | other
        self._columns = GrowingTable({})

    def __len__(self) -> int:
        return self.rows.length

    @property
    def nbytes(self) -> int:
        """Memory of all columns."""
        return self.rows.nbytes + self._columns.nbytes

    def add(self, events: Sequence[dict[str, Any]], places: dict[str, Array]) -> None:
        """Adds events with their ``number``, ``offset``, ``size`` and ``time``."""
        self._meet(events[0])
        self._meet(events[-1])
        values = {name: _column(events, name) for name in self.fields if name in self._columns}
        self.rows.append(len(events), places)
        self._columns.append(len(events), values)

    def _meet(self, event: dict[str, Any]) -> None:
        """Learns the fields of an event."""
        for name, value in event.items():
            if name in self.fields or name in _FIXED or len(name) > LONGEST_NAME:
                continue
            if len(self.fields) >= 4 * MOST_FIELDS:
                continue
            self.fields[name] = kind = _kind(value)
            if kind in ("number", "flag") and len(self._columns.names) < MOST_FIELDS:
                self._columns.add(name, "f8", float("nan"))

    def values(self, name: str) -> Array | None:
        """The column of a field; None if it has none."""
        return self._columns.get(name)

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
        return np.fromiter(map(itemgetter(name), events), np.float64, len(events))
    except (KeyError, TypeError, ValueError, OverflowError):
        return np.fromiter((_number(event.get(name)) for event in events), np.float64, len(events))


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        return float("nan")
    try:
        return float(value)
    except OverflowError:
        return float("nan")
