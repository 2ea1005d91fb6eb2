"""What the page of a run shows, as plain data. All functions are called with the run's lock held."""

from typing import Any

import numpy as np

from cabafl.recording.folder import BEST_MODEL, MODEL, RAW_MODEL
from cabafl.watch.columns import Array
from cabafl.watch.index import COUNTED_ONLY
from cabafl.watch.jobs import OUTCOMES, UNDER_WAY, UPLOADED
from cabafl.watch.lines import Event, parse_line
from cabafl.watch.watched import WatchedRun

UNLISTED = ("dispatch", "upload", "answer", *COUNTED_ONLY)
LONGEST_LIST = 2000  # entries of a field of an event
MOST_BYTES = 8 << 20  # of the lines of one answer; at least one event is listed


def run_page(run: WatchedRun) -> dict[str, Any]:
    """Everything about a run that is not a curve."""
    index, collections = run.index, run.index.collections
    starts = [entry for entry in collections if entry[1]]
    ends = [entry for entry in collections if not entry[1]]
    counts = np.trim_zeros(index.staleness, "b")
    uploads = int(index.staleness.sum())
    return run.row() | {
        "settings": run.facts.settings,
        "environment": run.facts.environment,
        "summary": run.summary,
        "kinds": dict(index.counts),
        "losses": run.losses,
        "staleness": {
            "counts": counts,
            "mean": index.staleness_sum / uploads if uploads else None,
            "max": index.staleness_max,
        },
        "collections": {
            "count": len(starts),
            "open": len(starts) > len(ends),
            "asked": starts[-1][2] if starts else 0,
            "missing": ends[-1][3] if ends else 0,
        },
        "tiers": run.facts.tiers,
        "replay": {"from": 0.0, "to": run.time},
        "models": [name for name in (MODEL, RAW_MODEL, BEST_MODEL) if run.place.stat(name) is not None],
        "joules_of_devices": energy_source(run),
        "damaged": index.damaged,
    }


def energy_source(run: WatchedRun) -> str:
    """How the energy of single devices is known."""
    if "joules" in run.index.jobs.rows:
        return "reported"
    return "unknown" if run.facts.clock == "wall" or run.facts.experiment is None else "estimated"


def curves(run: WatchedRun, since: int, points: int) -> dict[str, Any]:
    """The evaluations."""
    rows = run.evaluations
    if run.facts.clock == "wall":
        wall, known = rows.rows["time"] if "time" in rows.rows else np.empty(0), "exact"
    else:
        wall, known = rows.wall(run.wall_seconds)
    return {
        "generation": run.generation,
        "rows": len(rows),
        "since": min(max(since, 0), len(rows)),
        "wall": known,
        "metric": run.facts.metric.described(),
        "columns": rows.columns(since, points, wall),
    }


def activity(run: WatchedRun, points: int) -> dict[str, Any]:
    """What happened in each of ``points`` equal parts of the run."""
    jobs = run.index.jobs
    end, outcome = jobs["end"], jobs["outcome"]
    edges = np.linspace(0.0, max(run.time, 1e-9), points + 1)
    uploaded = outcome == UPLOADED
    sent, back = _share(jobs["start"], edges), _share(end[outcome != UNDER_WAY], edges)
    uploads = _share(end[uploaded], edges)
    stale = _share(end[uploaded], edges, jobs["staleness"][uploaded])
    published = run.index.kinds.get("publish")
    with np.errstate(invalid="ignore", divide="ignore"):
        staleness = stale / uploads
    return {
        "generation": run.generation,
        "edges": edges,
        "dispatches": sent,
        "uploads": uploads,
        "published": _share(np.empty(0) if published is None else published.rows["time"], edges),
        "in_flight": np.cumsum(sent) - np.cumsum(back),
        "staleness": staleness,
        "losses": {
            reason: _share(end[outcome == code], edges)
            for code, reason in enumerate(OUTCOMES)
            if code > UPLOADED and (outcome == code).any()
        },
    }


def _share(times: Array, edges: Array, weights: Array | None = None) -> Array:
    """How many ``times`` lie in each part, or the sum of their ``weights``."""
    counts = np.histogram(times, edges, weights=weights)[0]
    return counts if weights is not None else counts.astype(np.int64)


def events(
    run: WatchedRun, kinds: list[str], before: int | None, limit: int, time: float | None = None
) -> dict[str, Any]:
    """Events as they were recorded, newest first."""
    logs = {kind: log for kind, log in run.index.kinds.items() if kind not in UNLISTED and (not kinds or kind in kinds)}
    numbers, places = [], []
    for log in logs.values():
        end = len(log) if time is None else log.upto(time)
        if before is not None:
            end = min(end, int(np.searchsorted(log.rows["number"], before)))
        first = max(0, end - limit - 1)
        numbers.append(log.rows["number"][first:end])
        places.append(np.stack([log.rows["offset"][first:end], log.rows["size"][first:end]], axis=1))
    if not numbers:
        return {"generation": run.generation, "events": [], "more": False}
    number, place = np.concatenate(numbers), np.concatenate(places)
    newest = np.argsort(number)[::-1]
    fits = 1 + int(np.searchsorted(np.cumsum(place[newest][:, 1]), MOST_BYTES))
    shown = newest[: min(limit, fits)]
    found = [read_event(run, int(number[i]), *place[i].tolist()) for i in shown]
    return {
        "generation": run.generation,
        "events": [event for event in found if event is not None],
        "more": len(newest) > len(shown),
    }


def read_event(run: WatchedRun, number: int, offset: int, size: int, longest: int = LONGEST_LIST) -> Event | None:
    """An event again, from the file; None if it is gone. Long lists are cut off."""
    event = parse_line(run.event_bytes(offset, size))
    if event is None:
        return None
    long = [name for name, value in event.items() if isinstance(value, list | str) and len(value) > longest]
    shown = {name: value[:longest] if name in long else value for name, value in event.items()}
    return {"number": number, **shown, **({"shortened": long} if long else {})}
