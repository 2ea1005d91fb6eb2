"""Lines of an event log as events. A line that is not an event is left out; it never stops the rest."""

import json
import re
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import orjson

from cabafl.recording.version_0_1 import translate_event
from cabafl.watch.columns import Array

Event = dict[str, Any]
LATEST = 1e15  # seconds: no run lasts 30 million years
LONGEST_KIND = 100  # letters in the name of a kind
_NOT_FINITE = re.compile(rb"(?<=[:,\[])-?(?:Infinity|inf|NaN|nan)(?=[,}\]])")
_LINE_END = ord("\n")


class Piece(NamedTuple):
    """Events in their order, and where the lines are in the file: those of the events first, then damaged ones."""

    events: list[Event]
    time: Array
    groups: dict[str, list[int]]  # kind -> its events, as places in ``events``
    begin: Array
    size: Array


def parse(content: bytes, start: int) -> Piece:
    """The events in complete lines, of which the first begins at byte ``start`` of the file."""
    ends = np.flatnonzero(np.frombuffer(content, dtype=np.uint8) == _LINE_END)
    if not len(ends) or ends[-1] != len(content) - 1:
        ends = np.append(ends, len(content))
    begins = np.append(0, ends[:-1] + 1)
    try:
        events = _all_at_once(content)
        if len(events) != len(ends):
            raise ValueError("not one event per line")
        return Piece(events, _times(events), _grouped(events), begins + start, ends - begins)
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    found = [parse_line(content[a:b]) for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
    order = np.argsort([event is None for event in found], kind="stable")
    events = [event for event in found if event is not None]
    begins, ends = begins[order], ends[order]
    return Piece(events, _times(events), _grouped(events), begins + start, ends - begins)


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


def _all_at_once(content: bytes) -> list[Event]:
    joined = b"[" + content.rstrip(b"\n").replace(b"\n", b",") + b"]"
    try:
        found: list[Event] = orjson.loads(joined)
    except orjson.JSONDecodeError:
        found = orjson.loads(_NOT_FINITE.sub(b"null", joined))
    return found


def _times(events: list[Event]) -> Array:
    times = np.fromiter(map(itemgetter("time"), events), np.float64, len(events))
    if not (np.abs(times) < LATEST).all():  # also if one is missing
        raise ValueError("an event without a time")
    return times


def _grouped(events: list[Event]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for number, event in enumerate(events):
        kind = event["event"]
        if kind in groups:
            groups[kind].append(number)
        else:
            groups[kind] = [number]
    if not all(isinstance(kind, str) and len(kind) <= LONGEST_KIND for kind in groups):
        raise TypeError("a kind that is not a name")
    return groups
