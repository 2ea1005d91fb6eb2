"""Reads event logs: totals over the whole log, and the jobs of the first seconds.

Logs are streamed, since they may have millions of lines.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cabafl.errors import UserError
from cabafl.recording.folder import SUMMARY
from cabafl.recording.version_0_1 import translate_event


@dataclass
class Counts:
    """Totals over a whole log."""

    selections: Counter[int] = field(default_factory=Counter)  # device -> dispatches
    staleness: Counter[int] = field(default_factory=Counter)  # staleness -> uploads
    losses: Counter[str] = field(default_factory=Counter)  # reason -> jobs
    with_upload: set[int] = field(default_factory=set)  # devices
    with_loss: set[int] = field(default_factory=set)  # devices
    longest: float = 0.0  # seconds of the longest job, as expected at its dispatch
    end: float = 0.0  # time of the last event

    @property
    def never_heard(self) -> set[int]:
        """Devices that lost every job, e.g. because the method always restarts them."""
        return self.with_loss - self.with_upload


class JobSpan(NamedTuple):
    """One job on a device; ``lost`` is the reason why it ended without an upload, or None."""

    device: int
    slot: int
    version: int
    start: float
    end: float
    lost: str | None


@dataclass
class FirstSeconds:
    """Jobs and the times of published models in the first seconds of a run."""

    jobs: list[JobSpan] = field(default_factory=list)
    published: list[float] = field(default_factory=list)


def count_events(path: Path) -> Counts:
    """Computes the totals in one pass. Raises `UserError` if the log cannot be read or parsed."""
    counts = Counts()
    for event in read_events(path):
        counts.end = event["time"]
        if event["event"] == "dispatch":
            counts.selections[event["device"]] += 1
            if event["due"] is not None:  # null: the device is too slow ever to end
                counts.longest = max(counts.longest, event["due"] - event["time"])
        elif event["event"] == "upload":
            counts.staleness[event["staleness"]] += 1
            counts.with_upload.add(event["device"])
        elif event["event"] == "loss":
            counts.with_loss.add(event["device"])
            counts.losses[event["reason"]] += 1
    return counts


def read_first_seconds(path: Path, seconds: float) -> FirstSeconds:
    """Reads jobs and published models up to ``seconds``. Jobs still running then, or at the end of the run, end
    there."""
    found = FirstSeconds()
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
    """Yields dispatches, uploads, losses, published models and evaluations in order; skips other events unparsed. In
    the log of an unfinished run, the last line may be torn."""
    kinds = ("dispatch", "upload", "loss", "publish", "evaluation", "aggregation")  # aggregation: publish in 0.1
    marks = tuple(f'"event":"{kind}"' for kind in kinds)
    line = ""
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if not line.endswith("\n") and not (path.parent / SUMMARY).exists():
                    return
                if line.startswith(marks, line.find('"event"')):
                    yield _checked(translate_event(json.loads(line)))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not an event of a run: {line.strip()[:80]!r} ({error})") from None


_NUMBER = (int, float)
_FIELDS: dict[str, dict[str, Any]] = {
    "dispatch": {"job": int, "device": int, "slot": int, "version": int, "due": (*_NUMBER, type(None))},
    "upload": {"job": int, "device": int, "staleness": int},
    "loss": {"job": int, "device": int, "reason": str},
}


def _checked(event: dict[str, Any]) -> dict[str, Any]:
    """Returns the event if its fields have the expected types; a damaged or edited log raises here."""
    for name, kind in (("time", _NUMBER), *_FIELDS.get(event["event"], {}).items()):
        if not isinstance(event[name], kind):
            raise TypeError(f"{name} = {event[name]!r}")
    return event
