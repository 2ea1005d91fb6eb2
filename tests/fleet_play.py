"""A wall-clock engine with a model of four numbers, and eight devices that answer it after random times."""

import heapq
from typing import Any

import numpy as np

from cabafl.checked import make_method
from cabafl.config import load_experiment
from cabafl.engine.core import EngineSetup, Limits
from cabafl.engine.defence import DefenceRules
from cabafl.engine.inputs import Arrived, Gathered, Held, Input, Joined, Passed, Started
from cabafl.engine.wall import WallEngine
from cabafl.execution.inline import LazyExecutor
from cabafl.learning.evaluation import Score
from cabafl.methods.base import Method, Weights
from cabafl.rng import rng
from tests.runs import AUTO
from tests.scripted import vector

DEVICES, SLOTS = 8, 3
UNDEFENDED = DefenceRules(None, None, None)  # as in a simulation
SECONDS = 60.0
CABAFL_AUTO = "cabafl auto"
INITIAL = vector(0.5, -0.25, 1.0, 2.0)
FEATURES = rng(1, "features").random((DEVICES, 5)).astype(np.float32)
SIZES = [10, 40, 20, 80, 30, 60, 50, 70]


def method_named(name: str) -> Method:
    """A method with its defaults; CaBaFL with smaller caches, periodic aggregation with shorter periods; `CABAFL_AUTO`
    with settings that tune themselves."""
    own = {"cabafl": ["method.m=6", "method.k=3"], "periodic": ["method.period=1", "method.fraction=0.3"]}
    extra = own.get(name, [])
    if name == CABAFL_AUTO:
        name, extra = "cabafl", AUTO
    return make_method(load_experiment(None, [f"method.name={name}", *extra]))


def trained(job: int, weights: Weights) -> Weights:
    """The upload for a job: the weights plus noise that depends on the job's number only."""
    return (weights + rng(3, "training", job).normal(0, 0.1, weights.size)).astype(np.float32)


def wall_engine(name: str, emit: Any, rules: DefenceRules = UNDEFENDED, **limits: Any) -> WallEngine:
    """The engine of a run of 60 s that no device has joined yet."""
    setup = EngineSetup(
        method=method_named(name),
        executor=LazyExecutor(1, [], lambda job: Score(((0.0,),), 0.0, 1)),
        initial=INITIAL,
        emit=emit,
        seed=4,
        slots=SLOTS,
        limits=Limits(**{"seconds": SECONDS, "evaluate_every": 7.0, **limits}),
        trainable=INITIAL.size,
        defence=rules,
    )
    return WallEngine(setup, DEVICES)


class Play:
    """Devices that answer after random times, all present from the beginning."""

    def __init__(self, engine: WallEngine, seed: int) -> None:
        self.engine = engine
        self.draw = rng(seed, "play")
        self.agenda: list[tuple[float, int, Any]] = []
        self.inputs: list[Input] = []
        self.serial = 0

    def give(self, what: Input) -> None:
        """Passes an input to the engine and schedules the answers to its orders."""
        self.inputs.append(what)
        self.engine.handle(what)
        orders = self.engine.take_orders()
        for job in orders.jobs:
            self.later(self.draw.uniform(0.5, 4.0), job)
        for job in orders.fetched:
            self.later(0.0, ("fetched", job))
        if orders.ask:
            self.later(self.draw.uniform(0.2, 1.0), "features")

    def upload(self, time: float, job: int) -> Arrived:
        """What a device uploads; it says how often it has stepped, and its loss if it is asked."""
        objective = self.engine.flights[job].objective
        loss = 0.5 if objective.report_loss else None
        square = 0.1 * (job % 7) if objective.report_square else None
        return Arrived(time, job, trained(job, self.engine.flights[job].weights), 1.0, 2.0, loss, square, 2, None)

    def later(self, seconds: float, what: Any) -> None:
        """Schedules an answer: a job's number, the upload of one that is held, or "features"."""
        self.serial += 1
        heapq.heappush(self.agenda, (self.engine.now + float(seconds), self.serial, what))

    def run(self) -> list[Input]:
        """Plays the whole run; returns its inputs."""
        for device in range(DEVICES):
            self.give(Joined(0.0, device, SIZES[device]))
        self.give(Started(0.0))
        while (following := min([entry[0] for entry in self.agenda[:1]] + [self.engine.next_alarm()])) < SECONDS:
            if not self.agenda or following < self.agenda[0][0]:
                self.give(Passed(following))
                continue
            time, _, what = heapq.heappop(self.agenda)
            if what == "features":
                self.give(Gathered(time, FEATURES, np.ones(DEVICES, dtype=bool)))
            elif isinstance(what, tuple) and what[1] in self.engine.flights:
                self.give(self.upload(time, what[1]))
            elif what in self.engine.flights:
                holds = self.engine.flights[what].objective.hold
                self.give(Held(time, what, 1.0, 2.0) if holds else self.upload(time, what))
        self.engine.handle(Passed(SECONDS))
        self.engine.conclude()
        return self.inputs
