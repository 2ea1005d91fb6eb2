"""The overview of all runs, with a number that says what is new."""

import threading
import time
from typing import Any

import numpy as np
import orjson

from cabafl.watch.shelf import Shelf

DEEPEST = 100  # levels of an answer; what lies deeper is left out
FRESH = 0.8  # seconds during which an overview is not made again


_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def as_json(value: Any) -> bytes:
    """JSON of plain data and arrays; numbers that are not finite become null, dates text."""
    try:
        return orjson.dumps(value, option=_OPTIONS, default=str)
    except TypeError:  # whole numbers beyond 64 bits, text that is not Unicode, lists in lists in lists ...
        return orjson.dumps(_tamed(value), option=_OPTIONS, default=str)


def _tamed(value: Any, deep: int = 0) -> Any:
    if deep > DEEPEST:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 1 << 63 else str(value)[:100]
    if isinstance(value, dict):
        return {str(_tamed(key)): _tamed(item, deep + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_tamed(item, deep + 1) for item in value]
    return np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value


class Overview:
    """All rows, and at which revision each was last changed. May be used by several threads."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.revision = 0
        self._rows: dict[tuple[str, str], tuple[int, bytes]] = {}  # kind and id -> revision, JSON
        self._gone: dict[str, int] = {}  # id -> revision
        self._texts: dict[str, tuple[tuple[object, ...], bytes]] = {}  # of runs, by id, and what they were made from
        self._made = 0.0
        self._lock = threading.Lock()

    def refresh(self) -> int:
        """Makes the rows again, unless they are fresh; returns the revision."""
        with self._lock:
            if time.monotonic() - self._made < FRESH:
                return self.revision
            found = self._found()
            changed = [key for key, text in found.items() if self._rows.get(key, (0, b""))[1] != text]
            gone = [key for key in self._rows if key not in found]
            if changed or gone:
                self.revision += 1
            for key in changed:
                self._rows[key] = self.revision, found[key]
                self._gone.pop(key[1], None)
            for key in gone:
                del self._rows[key]
                self._gone[key[1]] = self.revision
            self._made = time.monotonic()
            return self.revision

    def _found(self) -> dict[tuple[str, str], bytes]:
        shelf, rows = self.shelf, {}
        texts: dict[str, tuple[tuple[object, ...], bytes]] = {}
        for run in list(shelf.runs.values()):
            fleet = shelf.fleet_of(run)
            name = None if fleet is None else fleet.id
            made_from = (run, run.looks, name)
            before = self._texts.get(run.id)
            try:
                if before is None or before[0] != made_from:
                    before = made_from, as_json(run.row() | {"fleet": name})
            except Exception as error:  # one run that cannot be shown is no reason to show no other
                run.give_up(error)
                continue
            texts[run.id] = before
            rows["runs", run.id] = before[1]
        self._texts = texts
        for fleet in list(shelf.fleets.values()):
            own = shelf.run_of(fleet)
            rows["fleets", fleet.id] = as_json(fleet.row(None if own is None else own.id))
        return rows

    def changes(self, since: int) -> dict[str, Any]:
        """What has changed after a revision; everything after revision -1."""
        with self._lock:
            chosen = [(kind, text) for (kind, _), (revision, text) in self._rows.items() if revision > since]
            return {
                "revision": self.revision,
                "runs": [orjson.Fragment(text) for kind, text in chosen if kind == "runs"],
                "fleets": [orjson.Fragment(text) for kind, text in chosen if kind == "fleets"],
                "removed": [key for key, revision in self._gone.items() if revision > since],
            }
