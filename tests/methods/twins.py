"""Naive twins of methods: the formulas written out in float64, one event after the other, for comparison with the
methods on the real engine. A twin sees what happened (`Log`) and says what must follow."""

import dataclasses
from typing import Any

import numpy as np

from cabafl.methods.base import Floats, Job, LossReason, Method, Objective, Server, Upload, Weights
from tests.scripted import World


def nothing() -> Floats:
    """An empty vector."""
    return np.zeros(0)


@dataclasses.dataclass(eq=False)
class Entry:
    """Something that happened. ``kind``: upload, loss, ready, timer, and what the method did: send, publish, fetch,
    cancel, finish."""

    kind: str
    time: float
    job: int = -1
    device: int = -1
    sent: Floats = dataclasses.field(default_factory=nothing)
    weights: Floats = dataclasses.field(default_factory=nothing)
    correction: Floats = dataclasses.field(default_factory=nothing)
    version: int = 0
    objective: Objective | None = None
    upload: Upload | None = None
    idle: tuple[int, ...] = ()  # before the event is handled


MOMENTUM, RATE = 0.5, 0.1  # of local training
CAUSES = ("start", "features", "upload", "loss", "ready", "timer", "idle")


def watched(cls: type[Method], log: list[Entry]) -> Any:
    """A subclass of a method that logs what it is told."""

    def idle(server: Server) -> tuple[int, ...]:
        return tuple(sorted(server.idle))

    class Watched(cls):  # type: ignore[misc, valid-type]
        name = cls.name

        def on_upload(self, server: Any, upload: Upload) -> None:
            job = upload.job
            sent, back = job.weights.astype(float), upload.weights.astype(float)
            log.append(
                Entry("upload", server.now, job.number, job.device, sent, back, version=job.version, upload=upload)
            )
            super().on_upload(server, upload)

        def on_loss(self, server: Any, job: Job, reason: LossReason) -> None:
            log.append(Entry("loss", server.now, job.number, job.device))
            super().on_loss(server, job, reason)

        def on_ready(self, server: Any, job: Job) -> None:
            log.append(Entry("ready", server.now, job.number, job.device))
            super().on_ready(server, job)

        def on_timer(self, server: Any, name: str) -> None:
            log.append(Entry("timer", server.now, idle=idle(server)))
            super().on_timer(server, name)

        def on_features(self, server: Any, features: Any) -> None:
            log.append(Entry("features", server.now))
            super().on_features(server, features)

        def on_idle(self, server: Any, device: int) -> None:
            log.append(Entry("idle", server.now, device=device))
            super().on_idle(server, device)

    return Watched


def log_orders(world: World, log: list[Entry]) -> None:
    """Logs what the method orders, too."""
    engine: Any = world.engine
    publish, dispatch = engine.publish, engine.dispatch

    def publishing(weights: Weights, /, **facts: Any) -> None:
        log.append(Entry("publish", engine.now, weights=weights.astype(float)))
        publish(weights, **facts)

    def dispatching(device: int, weights: Weights, *rest: Any, **more: Any) -> int | None:
        job: int | None = dispatch(device, weights, *rest, **more)
        if job is not None:
            flight = engine.flights[job]
            correction = nothing() if flight.correction is None else flight.correction.astype(float)
            sent, objective = weights.astype(float), flight.objective
            log.append(Entry("send", engine.now, job, device, sent, nothing(), correction, engine.version, objective))
        return job

    def ordering(kind: str, order: Any) -> Any:
        def ordered(job: int) -> None:
            log.append(Entry(kind, engine.now, job))
            order(job)

        return ordered

    engine.publish, engine.dispatch = publishing, dispatching
    for kind in ("finish", "fetch", "cancel"):
        setattr(engine, kind, ordering(kind, getattr(engine, kind)))


class Twin:
    """Base of the twins: ``w`` is the global model, ``expected`` the models that must be published before the next
    event, ``jobs`` the jobs in flight. Every send must carry the newest model."""

    def __init__(self, world: World, **options: Any) -> None:
        self.engine, self.o = world.engine, options
        self.w: Floats = world.engine.initial.astype(float)
        self.t = world.engine.trainable
        self.n = world.engine.sizes.astype(float)
        self.version = 0
        self.jobs: dict[int, Entry] = {}
        self.expected: list[Floats] = []
        self.orders: list[tuple[str, int]] = []  # finish, fetch and cancel that must follow
        self.published = 0

    def follow(self, log: list[Entry]) -> None:
        """Checks everything that happened."""
        for entry in log:
            if entry.kind in CAUSES:
                assert not self.expected, f"no model was published before {entry}"
                assert not self.orders, f"{self.orders} did not follow before {entry}"
                if entry.kind in ("upload", "loss"):
                    del self.jobs[entry.job]
                getattr(self, entry.kind)(entry)
            elif entry.kind == "publish":
                assert self.expected, f"nothing was to be published at {entry.time}"
                np.testing.assert_allclose(entry.weights, self.expected.pop(0), rtol=3e-5, atol=3e-6)
                self.w, self.version, self.published = entry.weights, self.version + 1, self.published + 1
            elif entry.kind == "send":
                np.testing.assert_array_equal(entry.sent, self.w)
                assert entry.version == self.version
                self.jobs[entry.job] = entry
                self.send(entry)
            else:
                assert (entry.kind, entry.job) in self.orders, entry
                self.orders.remove((entry.kind, entry.job))
                if entry.kind == "cancel":
                    del self.jobs[entry.job]

    def delta(self, entry: Entry) -> Floats:
        """Delta of an upload, over trainable entries."""
        return np.asarray(entry.weights - entry.sent)[: self.t]

    def staleness(self, entry: Entry) -> int:
        """Versions since the dispatch."""
        return self.version - entry.version

    def model(self, step: Floats, entries: list[Entry], weights: Any) -> Floats:
        """The trainable entries moved by a step, the others the weighted mean of the uploads."""
        uploads = np.array([entry.weights for entry in entries])
        share = np.array(weights, dtype=float) / np.sum(weights)
        return np.concatenate([self.w[: self.t] + step, share @ uploads[:, self.t :]])

    def send(self, entry: Entry) -> None:
        """A job was sent."""

    def upload(self, entry: Entry) -> None:
        """An upload arrived."""

    def nothing(self, entry: Entry) -> None:
        """By default nothing follows."""

    loss = ready = timer = features = idle = start = nothing


def cosine(a: Floats, b: Floats) -> float:
    """1 if the first vector is zero."""
    if not a.any():
        return 1.0
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) if b.any() else 0.0


class Variates:
    """c and c_k."""

    def __init__(self, size: int) -> None:
        self.c, self.own = np.zeros(size), {}  # type: tuple[Floats, dict[int, Floats]]

    def check(self, entry: Entry) -> None:
        """The correction of a job is c - c_k."""
        expected = self.c - self.own.get(entry.device, 0.0)
        np.testing.assert_allclose(entry.correction[: len(self.c)], expected, rtol=1e-4, atol=1e-4)
        assert not entry.correction[len(self.c) :].any()

    def learn(self, entry: Entry, delta: Floats, c: Floats) -> Floats:
        assert entry.upload is not None
        steps = sum((1 - MOMENTUM**i) / (1 - MOMENTUM) for i in range(1, entry.upload.steps + 1))
        change = -delta / (RATE * steps) - c
        self.own[entry.device] = self.own.get(entry.device, np.zeros(len(c))) + change
        return np.asarray(change)
