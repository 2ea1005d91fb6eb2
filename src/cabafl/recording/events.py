"""The events of a run. One line of ``events.jsonl`` each; together they are enough to redraw everything.

``time`` is in seconds of the run's clock, virtual or wall. Lines are written with Python's shortest exact notation of
floats, so equal runs give equal bytes. The two frequent events are formatted by hand: a general encoder would cost more
than the engine itself.
"""

import json
from typing import Any, NamedTuple

_ENCODER = json.JSONEncoder(separators=(",", ":"))  # json.dumps would make a new one for every line


class _Stamp:
    """The text of an instant. An upload and the dispatch that follows it share theirs, so the last one is kept."""

    __slots__ = ("text", "time")

    def __init__(self) -> None:
        self.time: float | None = None
        self.text = ""

    def of(self, time: float) -> str:
        """Exact."""
        self.time, self.text = time, repr(time)
        return self.text


_last = _Stamp()


def _encoded(**facts: Any) -> str:
    return _ENCODER.encode(facts)


class Dispatched(NamedTuple):
    """A model was sent to a device; ``due`` is when its upload would arrive."""

    time: float
    job: int
    device: int
    slot: int
    version: int
    due: float

    def line(self) -> str:
        """JSON."""
        time, job, device, slot, version, due = self
        stamp = _last.text if time is _last.time else _last.of(time)
        return (
            f'{{"time":{stamp},"event":"dispatch","job":{job},"device":{device},"slot":{slot},'
            f'"version":{version},"due":{due!r}}}'
        )


class Uploaded(NamedTuple):
    """A trained model came back; ``staleness`` is how many models were published meanwhile."""

    time: float
    job: int
    device: int
    slot: int
    version: int
    staleness: int

    def line(self) -> str:
        """JSON."""
        time, job, device, slot, version, staleness = self
        stamp = _last.text if time is _last.time else _last.of(time)
        return (
            f'{{"time":{stamp},"event":"upload","job":{job},"device":{device},"slot":{slot},'
            f'"version":{version},"staleness":{staleness}}}'
        )


class Lost(NamedTuple):
    """A job ended without a usable upload: crash, timeout, rejected, stale or cancelled."""

    time: float
    job: int
    device: int
    slot: int
    reason: str

    def line(self) -> str:
        """JSON."""
        return _encoded(
            time=self.time, event="loss", job=self.job, device=self.device, slot=self.slot, reason=self.reason
        )


class Published(NamedTuple):
    """A new global model, with what the method says about it (weights of the mean, ...)."""

    time: float
    version: int
    facts: dict[str, Any]

    def line(self) -> str:
        """JSON."""
        return _encoded(time=self.time, event="publish", version=self.version, **self.facts)


class Collection(NamedTuple):
    """A feature collection started or ended; ``missing`` devices did not answer in time."""

    time: float
    step: str
    devices: int
    missing: int

    def line(self) -> str:
        """JSON."""
        return _encoded(time=self.time, event="collection", step=self.step, devices=self.devices, missing=self.missing)


class Noted(NamedTuple):
    """A decision of the method."""

    time: float
    kind: str
    facts: dict[str, Any]

    def line(self) -> str:
        """JSON."""
        return _encoded(time=self.time, event=self.kind, **self.facts)


class Evaluated(NamedTuple):
    """The global model on the test samples, with the totals up to this instant: one row of ``metrics.csv``."""

    time: float
    version: int
    accuracy: float
    loss: float
    downloads: int
    uploads: int
    feature_downloads: int
    transfers: int
    bytes: int
    joules: float

    def line(self) -> str:
        """JSON."""
        return _encoded(
            time=self.time, event="evaluation", version=self.version, accuracy=self.accuracy, loss=self.loss
        )

    def row(self) -> str:
        """CSV."""
        return ",".join(map(repr, self))


Event = Dispatched | Uploaded | Lost | Published | Collection | Noted | Evaluated
