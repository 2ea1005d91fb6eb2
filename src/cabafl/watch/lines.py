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
    if len(content) >= SMALL:
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
            events[kind] = _all_at_once(texts)
        except (KeyError, TypeError, ValueError):
            raise quick.Unusual from None
    return Piece(found.time, found.groups, found.begin + start, found.end - found.begin, events, found.columns)


def _decode(content: bytes, start: int) -> Piece:
    """`parse` for lines of any kind."""
    ends = np.flatnonzero(np.frombuffer(content, dtype=np.uint8) == _LINE_END)
    if not len(ends) or ends[-1] != len(content) - 1:
        ends = np.append(ends, len(content))
    begins = np.append(0, ends[:-1] + 1)
    found = decode([content[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)])
    order = np.argsort([event is None for event in found], kind="stable")
    begins, ends = begins[order], ends[order]
    events = [event for event in found if event is not None]
    groups: dict[str, list[int]] = {}
    for number, event in enumerate(events):
        groups.setdefault(event["event"], []).append(number)
    times = np.fromiter(map(itemgetter("time"), events), np.float64, len(events))
    by_kind = {kind: [events[member] for member in members] for kind, members in groups.items()}
    places = {kind: np.array(members) for kind, members in groups.items()}
    return Piece(times, places, begins + start, ends - begins, by_kind, {})


def decode(lines: Sequence[bytes]) -> list[Event | None]:
    """The events of lines, None for a line that is none. Knows the names of version 0.1. Numbers that are not finite
    are None."""
    try:
        return list(_all_at_once(lines))
    except (KeyError, TypeError, ValueError, OverflowError):
        return [parse_line(line) for line in lines]


def parse_line(line: bytes) -> Event | None:
    """`decode` of one line."""
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
        found = _loaded(lines)
        if type(found[0]) is dict and "time" in found[0]:  # else it has the names of version 0.1
            return found
    except (TypeError, ValueError):
        pass
    return [{} if event is None else event for event in map(parse_line, lines)]


def _loaded(lines: Sequence[bytes]) -> list[Event]:
    """One value per line, or ValueError."""
    joined = b"[" + b",".join(lines) + b"]"
    try:
        found: list[Event] = orjson.loads(joined)
    except orjson.JSONDecodeError:
        found = orjson.loads(_NOT_FINITE.sub(b"null", joined))
    if len(found) != len(lines):
        raise ValueError("not one event per line")
    return found


def _all_at_once(lines: Sequence[bytes]) -> list[Event]:
    """Raises an error unless each line is an event with the names of today."""
    found = _loaded(lines)
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
