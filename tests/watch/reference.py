"""What a run was at a moment, worked out event by event: slow and plain."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class PlainState:
    """Everything the page shows, after all events up to a time."""

    busy: dict[int, dict[str, Any]] = field(default_factory=dict)  # device -> dispatch event
    selections: Counter[int] = field(default_factory=Counter)
    lost: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    seen: dict[int, float] = field(default_factory=dict)
    last_lost: dict[int, str | None] = field(default_factory=dict)  # device -> reason of its last job, None: uploaded
    uploads: int = 0
    version: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    since_published: list[int] = field(default_factory=list)
    cache: dict[int, dict[str, Any]] = field(default_factory=dict)  # slot -> its last cache event since it published
    l1: dict[int, float] = field(default_factory=dict)
    visited: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    published: dict[str, Any] | None = None
    row: int = -1


def replay(folder: Path, time: float = float("inf")) -> PlainState:
    """Goes through the events up to ``time``."""
    state = PlainState()
    for line in (folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["time"] > time:
            break
        _take(state, event)
    return state


def _take(state: PlainState, event: dict[str, Any]) -> None:
    kind, device = event["event"], event.get("device")
    state.kinds[kind] += 1
    if kind == "dispatch":
        state.busy[event["device"]] = event
        state.selections[event["device"]] += 1
        state.visited[event["slot"]].append(event["device"])
    elif kind in ("upload", "loss"):
        assert isinstance(device, int)
        state.busy.pop(device)
        state.seen[device] = event["time"]
        state.last_lost[device] = event.get("reason")
        if kind == "upload":
            state.uploads += 1
            state.staleness[event["staleness"]] += 1
            state.since_published.append(device)
        else:
            state.lost[device] += 1
            state.reasons[event["reason"]] += 1
            state.visited[event["slot"]].remove(device)
    elif kind == "publish":
        state.version = event["version"]
        state.published = event
        state.since_published.clear()
        state.visited[event["slot"]].clear()
        state.cache.pop(event["slot"], None)
    elif kind == "cache":
        state.cache[event["slot"]] = event
        if event["accepted"]:
            state.l1[event["slot"]] = event["time"]
    elif kind == "evaluation":
        state.row += 1
