"""The events of a run; reports are drawn from them alone.

``time`` is in seconds of the run's clock, virtual or wall. ``line()`` returns the event as one line of
``events.jsonl``, without the newline. Floats are written with ``repr``, which is exact, so equal runs give equal bytes;
those that are not finite, for which JSON has no word, as null.
"""

import json
from typing import Any, NamedTuple

from cabafl.errors import UserError
from cabafl.recording.scale import ACCURACY, MetricInfo
from cabafl.recording.summary_file import finite

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)  # json.dumps with separators makes one per call


class _LastTime:
    """The text of the last time that was written. An upload and what follows from it share theirs. Not formatting it
    again saves 0.4 of about 10 µs that the engine takes per event (`cabafl bench engine`) in the line of the next
    dispatch, and in that of a published version 5 % of the event's instructions."""

    __slots__ = ("text", "time")

    def __init__(self) -> None:
        self.time: float | None = None
        self.text = ""

    def of(self, time: float) -> str:
        """Formats another time; one that is not a plain float, such as NumPy's, by the encoder."""
        self.time, self.text = time, repr(time) if type(time) is float else _ENCODER.encode(time)
        return self.text


_last = _LastTime()


def _as_json(event: str, facts: dict[str, Any]) -> str:
    try:
        try:
            return _ENCODER.encode(facts)
        except ValueError:  # a number that is not finite
            return _ENCODER.encode(finite(facts))
    except (TypeError, ValueError, RecursionError) as error:
        accepted = "numbers, text, lists and dictionaries; float(x) or x.tolist() makes them of arrays and tensors"
        raise UserError(f"event {event!r} cannot be recorded: {error}; accepted: {accepted}") from None


def _encoded(time: float, event: str, **facts: Any) -> str:
    stamp = _last.text if time is _last.time else _last.of(time)
    more = f",{_as_json(event, facts)[1:]}" if facts else "}"
    return f'{{"time":{stamp},"event":{_ENCODER.encode(event)}{more}'


def _check_names(event: str, facts: dict[str, Any], *own: str) -> None:
    """Raises `UserError` for a fact that has the name of one of the event's own fields."""
    for name in ("time", "event", *own):
        if name in facts:
            problem = f"its fact {name!r} has the name of a field of its own; accepted: other names"
            raise UserError(f"event {event!r} cannot be recorded: {problem}")


# Dispatched, Uploaded and Published are nearly all events, so they format their line without the encoder: 1.5 instead
# of 4.3 µs.


class Dispatched(NamedTuple):
    """A model was sent to a device; its upload is expected at ``due``."""

    time: float
    job: int
    device: int
    slot: int
    version: int
    due: float

    def line(self) -> str:
        time, job, device, slot, version, due = self
        stamp = _last.text if time is _last.time else _last.of(time)
        return (
            f'{{"time":{stamp},"event":"dispatch","job":{job},"device":{device},"slot":{slot},'
            f'"version":{version},"due":{due!r}}}'
        )


class Uploaded(NamedTuple):
    """A trained model came back; ``staleness`` is the number of models published since its dispatch."""

    time: float
    job: int
    device: int
    slot: int
    version: int
    staleness: int

    def line(self) -> str:
        time, job, device, slot, version, staleness = self
        stamp = _last.text if time is _last.time else _last.of(time)
        return (
            f'{{"time":{stamp},"event":"upload","job":{job},"device":{device},"slot":{slot},'
            f'"version":{version},"staleness":{staleness}}}'
        )


class Lost(NamedTuple):
    """A job ended without a usable upload; ``reason`` is crash, left, timeout, rejected, stale or cancelled."""

    time: float
    job: int
    device: int
    slot: int
    reason: str

    def line(self) -> str:
        return _encoded(
            time=self.time, event="loss", job=self.job, device=self.device, slot=self.slot, reason=self.reason
        )


class Published(NamedTuple):
    """A new global model; ``facts`` are fields added by the method, such as the aggregation weights."""

    time: float
    version: int
    facts: dict[str, Any]

    def line(self) -> str:
        time, version, facts = self
        if facts:
            _check_names("publish", facts, "version")
            return _encoded(time=time, event="publish", version=version, **facts)
        stamp = _last.text if time is _last.time else _last.of(time)
        return f'{{"time":{stamp},"event":"publish","version":{version}}}'


class Collection(NamedTuple):
    """A feature collection started or ended (``step``); ``missing`` devices did not answer in time."""

    time: float
    step: str
    devices: int
    missing: int

    def line(self) -> str:
        return _encoded(time=self.time, event="collection", step=self.step, devices=self.devices, missing=self.missing)


class Noted(NamedTuple):
    """A decision recorded by the method; ``kind`` becomes the event name."""

    time: float
    kind: str
    facts: dict[str, Any]

    def line(self) -> str:
        if not isinstance(self.kind, str) or self.kind in _KINDS:
            raise UserError(f"event {self.kind!r:.80} cannot be recorded: accepted: a name that no other event has")
        _check_names(self.kind, self.facts)
        return _encoded(time=self.time, event=self.kind, **self.facts)


class Evaluated(NamedTuple):
    """The global model was evaluated on the test samples; with the totals so far, this is a row of ``metrics.csv``."""

    time: float
    version: int
    value: float  # of the task's metric, whose name the column has
    loss: float
    downloads: int
    uploads: int
    feature_downloads: int
    transfers: int
    bytes: int
    joules: float
    averaged_value: float | None = None  # of the averaged model; None without ``run.average``
    averaged_loss: float | None = None
    more: tuple[tuple[str, float], ...] = ()  # further columns
    metric: MetricInfo = ACCURACY

    def line(self) -> str:
        facts: dict[str, float | None] = {"version": self.version, self.metric.name: self.value, "loss": self.loss}
        if self.averaged_value is not None:
            facts |= {f"averaged_{self.metric.name}": self.averaged_value, "averaged_loss": self.averaged_loss}
        return _encoded(time=self.time, event="evaluation", **facts, **dict(self.more))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of ``metrics.csv``; those of the averaged model only if there is one."""
        name = self.metric.name
        averaged = () if self.averaged_value is None else (f"averaged_{name}", "averaged_loss")
        return ("time", "version", name, "loss", *TOTALS, *averaged, *(key for key, _ in self.more))

    @property
    def numbers(self) -> tuple[float, ...]:
        """The values of the `columns`."""
        fixed: tuple[Any, ...] = self[:_FIXED] if self.averaged_value is None else self[: _FIXED + 2]
        return (*fixed, *(value for _, value in self.more))

    def row(self) -> str:
        """The row of ``metrics.csv``."""
        return ",".join(map(repr, self.numbers))


_KINDS = frozenset({"dispatch", "upload", "loss", "publish", "collection", "evaluation"})  # with fields of their own
TOTALS = ("downloads", "uploads", "feature_downloads", "transfers", "bytes", "joules")
_FIXED = 4 + len(TOTALS)
Event = Dispatched | Uploaded | Lost | Published | Collection | Noted | Evaluated
