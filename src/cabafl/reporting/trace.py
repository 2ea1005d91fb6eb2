"""What an event log adds up to, and its beginning in detail. Logs are streamed: they may have millions of lines."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cabafl.errors import UserError
from cabafl.recording.version_0_1 import translate_event


@dataclass
class Counts:
    """Sums over a whole log."""

    selections: Counter[int] = field(default_factory=Counter)  # device -> dispatches
    staleness: Counter[int] = field(default_factory=Counter)  # staleness -> uploads
    heard: set[int] = field(default_factory=set)  # devices with an upload
    losing: set[int] = field(default_factory=set)  # devices with a lost job
    longest: float = 0.0  # seconds of the longest job as planned at its dispatch
    end: float = 0.0  # virtual second of the last event

    @property
    def never_heard(self) -> set[int]:
        """Devices that worked and lost it all: restarted again and again, or always too late."""
        return self.losing - self.heard


class JobSpan(NamedTuple):
    """One stay of a model on a device; ``lost`` tells why it ended without an upload."""

    device: int
    slot: int
    version: int
    start: float
    end: float
    lost: str | None


@dataclass
class Beginning:
    """The first seconds of a run."""

    jobs: list[JobSpan] = field(default_factory=list)
    published: list[float] = field(default_factory=list)


def count_events(path: Path) -> Counts:
    """One pass over the log."""
    counts = Counts()
    for event in read_events(path):
        counts.end = event["time"]
        if event["event"] == "dispatch":
            counts.selections[event["device"]] += 1
            counts.longest = max(counts.longest, event["due"] - event["time"])
        elif event["event"] == "upload":
            counts.staleness[event["staleness"]] += 1
            counts.heard.add(event["device"])
        elif event["event"] == "loss":
            counts.losing.add(event["device"])
    return counts


def read_beginning(path: Path, seconds: float) -> Beginning:
    """Jobs and published models up to this second; what is under way then, or at the run's end, is cut off."""
    found = Beginning()
    open_jobs: dict[int, tuple[int, int, int, float]] = {}
    now = 0.0
    for event in read_events(path):
        if event["time"] > seconds:
            now = seconds
            break
        now = event["time"]
        kind = event["event"]
        if kind == "dispatch":
            open_jobs[event["job"]] = event["device"], event["slot"], event["version"], event["time"]
        elif kind in ("upload", "loss") and event["job"] in open_jobs:
            found.jobs.append(JobSpan(*open_jobs.pop(event["job"]), event["time"], event.get("reason")))
        elif kind == "publish":
            found.published.append(event["time"])
    found.jobs += [JobSpan(*job, now, None) for job in open_jobs.values()]
    return found


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Dispatches, uploads, losses, published models and evaluations, in order; what methods add is passed over."""
    kinds = ("dispatch", "upload", "loss", "publish", "evaluation", "aggregation")  # the last: a publish of 0.1
    marks = tuple(f'"event":"{kind}"' for kind in kinds)
    line = ""
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.startswith(marks, line.find('"event"')):
                    yield _checked(translate_event(json.loads(line)))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not an event of a run: {line.strip()[:80]!r} ({error})") from None


_NUMBER = (int, float)
_FIELDS: dict[str, dict[str, Any]] = {
    "dispatch": {"job": int, "device": int, "slot": int, "version": int, "due": _NUMBER},
    "upload": {"job": int, "device": int, "staleness": int},
    "loss": {"job": int, "device": int, "reason": str},
}


def _checked(event: dict[str, Any]) -> dict[str, Any]:
    """A log that was cut or mended by hand must not end in a traceback."""
    for name, kind in (("time", _NUMBER), *_FIELDS.get(event["event"], {}).items()):
        if not isinstance(event[name], kind):
            raise TypeError(f"{name} = {event[name]!r}")
    return event
