"""The real engine on scripted parts: the test gives device times, training results and random draws."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Required, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from cabafl.engine.core import EngineSetup, Limits
from cabafl.engine.idle import IdleSet
from cabafl.engine.virtual import VirtualEngine
from cabafl.execution.base import EvaluateJob, ExecutorJob, Interrupt, TrainJob
from cabafl.fleet import Faults, Fleet
from cabafl.learning.evaluation import Score
from cabafl.learning.task import TrainingResult
from cabafl.methods.base import PLAIN, Method, Objective, Random, Weights
from cabafl.recording.events import Dispatched, Event, Lost, Noted, Published

Trainer = Callable[[TrainJob], Any]


def vector(*values: float) -> Weights:
    """A model of a few numbers."""
    return np.array(values, dtype=np.float32)


def fleet(seconds: Sequence[float], sizes: Sequence[int] | None = None) -> Fleet:
    """Devices with the given job times in seconds; no link time."""
    n = len(seconds)
    zeros = np.zeros(n)
    samples = np.ones(n, dtype=np.int64) if sizes is None else np.array(sizes, dtype=np.int64)
    return Fleet(samples, np.array(seconds, dtype=np.float64), zeros, 0.0, zeros, zeros, zeros, zeros)


class _Times(dict[int, list[float]]):
    """The times of the jobs of each device: every look at a device takes one."""

    def __getitem__(self, device: int) -> float:  # type: ignore[override]
        return super().__getitem__(device).pop(0)


class _Timetable(Fleet):
    """A fleet with a list of job times per device."""

    def job(self, device: int, work: float = 1.0, models: int = 2) -> tuple[float, float]:
        return self.full_seconds[device], 0.0


def timetable(seconds: Mapping[int, Sequence[float]], sizes: Sequence[int] | None = None) -> Fleet:
    """Devices with a time for each of their jobs, in order. A job beyond the list fails the test."""
    plain = fleet([1.0] * len(seconds), sizes)
    made = _Timetable(**{f.name: getattr(plain, f.name) for f in dataclasses.fields(plain) if f.init})
    object.__setattr__(made, "full_seconds", _Times((device, list(times)) for device, times in seconds.items()))
    return made


class ScriptedExecutor:
    """Training results from a function, features from a table, a score of 0."""

    def __init__(self, train: Trainer, features: npt.ArrayLike | None = None) -> None:
        self.evaluation_chunks = 1
        table = np.zeros((0, 1)) if features is None else np.array(features, dtype=np.float64)
        self.table = table
        self.feature_chunks = [range(len(table))]
        self.train = train
        self.jobs: dict[int, ExecutorJob] = {}
        self.trained: list[TrainJob] = []

    def submit(self, job: ExecutorJob, due: float = 0.0) -> int:
        ticket = len(self.jobs)
        self.jobs[ticket] = job
        return ticket

    def done(self, ticket: int) -> bool:
        return True

    def result(self, ticket: int, interrupt: Interrupt | None = None) -> Any:
        job = self.jobs[ticket]
        if isinstance(job, TrainJob):
            self.trained.append(job)
            made = self.train(job)
            return made if isinstance(made, TrainingResult) else TrainingResult(made, epochs=job.objective.epochs or 1)
        if isinstance(job, EvaluateJob):
            return Score(((0.0,),), 0.0, 1)
        return self.table.copy()

    def discard(self, ticket: int) -> None:
        pass

    def close(self) -> None:
        pass


class ScriptedIdle(IdleSet):
    """Random draws come from a list; later ones are random. A device that is not idle fails the test."""

    picks: list[int]

    def draw(self, random: Random, without: int | None = None) -> int:
        if not self.picks:
            return super().draw(random, without)
        device = self.picks.pop(0)
        assert device in self, f"scripted pick {device} is not idle"
        return device

    def draw_many(self, random: Random, k: int, without: Collection[int] = ()) -> list[int]:
        if not self.picks:
            return super().draw_many(random, k, without)
        drawn = [self.draw(random) for _ in range(min(k, len(self)))]
        assert not set(drawn) & set(without), f"scripted picks {drawn}: {without} must not be drawn"
        return drawn


class Settings(TypedDict, total=False):
    """Keyword arguments of `World`."""

    initial: Required[Weights]
    slots: Required[int]
    limits: Required[Limits]
    features: npt.ArrayLike | None  # one row per device
    picks: Iterable[int]  # devices for the first random draws
    seed: int
    epochs: int
    learning_rate: float
    momentum: float
    faults: Faults | None
    trainable: int  # leading entries of the model; default: all


class World:
    """A method on the real engine with scripted devices; keeps the emitted events.

    ``train`` computes the upload of a job, or lists the uploads by job number.
    """

    def __init__(
        self, method: Method, devices: Fleet, train: Trainer | Sequence[Weights], **settings: Unpack[Settings]
    ) -> None:
        self.events: list[Event] = []
        if not callable(train):
            results = list(train)
            train = lambda job: results[job.number]  # noqa: E731
        self.executor = ScriptedExecutor(train, settings.get("features"))
        initial = settings["initial"]
        setup = EngineSetup(
            method=method,
            executor=self.executor,
            initial=initial,
            emit=self.events.append,
            seed=settings.get("seed", 1),
            slots=settings["slots"],
            limits=settings["limits"],
            trainable=settings.get("trainable", initial.size),
            epochs=settings.get("epochs", 1),
            learning_rate=settings.get("learning_rate", 0.01),
            momentum=settings.get("momentum", 0.0),
        )
        self.engine = VirtualEngine(setup, devices, settings.get("faults"))
        idle = ScriptedIdle(len(devices), np.flatnonzero(devices.sizes > 0))
        idle.picks = list(settings.get("picks", ()))
        self.engine.idle = idle
        self.published: list[Weights] = []
        self.sent: list[tuple[float, int, tuple[float, ...]]] = []  # (time, device, model) of every dispatch
        self._record()

    def _record(self) -> None:
        publish, dispatch = self.engine.publish, self.engine.dispatch

        def publishing(weights: Weights, /, **facts: Any) -> None:
            self.published.append(weights)
            publish(weights, **facts)

        def dispatching(
            device: int,
            weights: Weights,
            slot: int = 0,
            objective: Objective = PLAIN,
            correction: Weights | None = None,
        ) -> int | None:
            job = dispatch(device, weights, slot, objective, correction)
            if job is not None:
                flight = self.engine.flights[job]  # what the engine passes to the trainer
                self.sent.append((flight.started, flight.device, tuple(flight.weights.tolist())))
            return job

        self.engine.publish, self.engine.dispatch = publishing, dispatching  # type: ignore[method-assign]

    def run(self) -> "World":
        """Runs to the end; returns itself."""
        self.engine.run()
        return self

    @property
    def dispatches(self) -> list[tuple[float, int, int]]:
        """(time, device, slot) in order."""
        return [(e.time, e.device, e.slot) for e in self.events if isinstance(e, Dispatched)]

    @property
    def losses(self) -> list[tuple[float, int, str]]:
        """(time, device, reason) in order."""
        return [(e.time, e.device, e.reason) for e in self.events if isinstance(e, Lost)]

    def notes(self, kind: str) -> list[dict[str, Any]]:
        """The facts of all notes of a kind."""
        return [e.facts for e in self.events if isinstance(e, Noted) and e.kind == kind]

    def publications(self) -> list[Published]:
        """The events of all published models."""
        return [e for e in self.events if isinstance(e, Published)]
