"""Lines of an event log as events. A line that is not an event is left out; it never stops the rest."""

import gc
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import orjson

from cabafl.recording.version_0_1 import translate_event
from cabafl.watch import quick
from cabafl.watch.columns import Array
from cabafl.watch.quick import LATEST, LONGEST_KIND

Event = dict[str, Any]
SMALL = 64 << 10  # bytes; to decode less than that is quicker than to begin `quick.read`, which takes 2 ms
LARGE = 4 << 20  # bytes; more is read at once for the sake of one very long line only
DECODED = ("loss", "answer", "collection", "auto")  # kinds of which every event is decoded at once
_NOT_FINITE = re.compile(rb"(?<=[:,\[])-?(?:Infinity|inf|NaN|nan)(?=[,}\]])")
_LINE_END = ord("\n")


class Piece(NamedTuple):
    """Events in their order, and where the lines are in the file: those of the events first, then damaged ones.

    Dispatches and uploads are either in ``columns`` or in ``events``. Of kinds beyond `DECODED`, ``events`` may have
    the first and the last one only.
    """

    time: Array
    groups: dict[str, Array]  # kind -> its events, as places in ``time``
    begin: Array
    size: Array
    events: dict[str, list[Event]]  # by kind
    columns: dict[str, dict[str, Array]]  # kind -> field -> values


def parse(content: bytes, start: int) -> Piece:
    """The events in complete lines, of which the first begins at byte ``start`` of the file."""
    if SMALL <= len(content) <= LARGE:
        try:
            return _read(content, start)
        except quick.Unusual:
            pass
    return _decode(content, start)


def _read(content: bytes, start: int) -> Piece:
    """`parse` for lines as the engine writes them; raises `quick.Unusual` for others."""
    found = quick.read(content)
    events = {}
    for kind, members in found.groups.items():
        if kind in found.columns:
            continue
        needed = members if kind in DECODED else members[[0, -1]]
        texts = [content[a:b] for a, b in zip(found.begin[needed].tolist(), found.end[needed].tolist(), strict=True)]
        try:
            events[kind] = _all_at_once(b",".join(texts), len(texts))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise quick.Unusual from None
    return Piece(found.time, found.groups, found.begin + start, found.end - found.begin, events, found.columns)


def _decode(content: bytes, start: int) -> Piece:
    """`parse` for lines of any kind."""
    ends = np.flatnonzero(np.frombuffer(content, dtype=np.uint8) == _LINE_END)
    if not len(ends) or ends[-1] != len(content) - 1:
        ends = np.append(ends, len(content))
    begins = np.append(0, ends[:-1] + 1)
    try:
        events = _all_at_once(content.rstrip(b"\n").replace(b"\n", b","), len(ends))
    except (KeyError, TypeError, ValueError, OverflowError):
        found = [parse_line(content[a:b]) for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
        order = np.argsort([event is None for event in found], kind="stable")
        begins, ends = begins[order], ends[order]
        events = [event for event in found if event is not None]
    by_kind: dict[str, list[Event]] = {}
    groups: dict[str, list[int]] = {}
    for number, event in enumerate(events):
        kind = event["event"]
        if kind in groups:
            groups[kind].append(number)
            by_kind[kind].append(event)
        else:
            groups[kind], by_kind[kind] = [number], [event]
    times = np.fromiter(map(itemgetter("time"), events), np.float64, len(events))
    places = {kind: np.array(members) for kind, members in groups.items()}
    return Piece(times, places, begins + start, ends - begins, by_kind, {})


def parse_line(line: bytes) -> Event | None:
    """One event; None if the line is none. Knows the names of version 0.1. Numbers that are not finite are None."""
    try:
        event = json.loads(_NOT_FINITE.sub(b"null", line))
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            return None
        event = translate_event(event)
        usable = len(event["event"]) <= LONGEST_KIND and abs(float(event["time"])) < LATEST
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return dict(event) if usable else None


def decode_again(lines: Sequence[bytes]) -> list[Event]:
    """The events of lines that were taken for events before; one that is none has no fields."""
    try:
        found = _loaded(b",".join(lines), len(lines))
        if set(map(type, found)) == {dict} and "time" in found[0]:  # else it has the names of version 0.1
            return found
    except (TypeError, ValueError):
        pass
    return [{} if event is None else event for event in map(parse_line, lines)]


def _loaded(joined: bytes, lines: int) -> list[Event]:
    """One value for each of so many lines, which are joined by commas, or ValueError."""
    joined = b"[" + joined + b"]"
    try:
        found: list[Event] = orjson.loads(joined)
    except orjson.JSONDecodeError:
        found = orjson.loads(_NOT_FINITE.sub(b"null", joined))
    if len(found) != lines:
        raise ValueError("not one event per line")
    return found


def _all_at_once(joined: bytes, lines: int) -> list[Event]:
    """The same; an error unless each line is an event with the names of today."""
    found = _loaded(joined, lines)
    times = np.fromiter(map(itemgetter("time"), found), np.float64, len(found))
    if not (np.abs(times) < LATEST).all():  # also if one is missing
        raise ValueError("an event without a time")
    if not all(isinstance(kind, str) and len(kind) <= LONGEST_KIND for kind in set(map(itemgetter("event"), found))):
        raise TypeError("a kind that is not a name")
    return found


@contextmanager
def no_collector() -> Iterator[None]:
    """A million small objects that are gone at once would make the collector of cycles run again and again."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
