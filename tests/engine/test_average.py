"""The average of published models: worked numbers on both clocks, whatever the workers, after any stop."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from cabafl import simulate
from cabafl.config import load_experiment
from cabafl.engine.average import AverageRule, RunningAverage
from cabafl.engine.core import EngineSetup, Limits
from cabafl.engine.inputs import Arrived, Joined, Passed, Started
from cabafl.engine.virtual import VirtualEngine
from cabafl.engine.wall import WallEngine
from cabafl.execution.base import EvaluateJob, ExecutorJob
from cabafl.execution.inline import LazyExecutor
from cabafl.learning.evaluation import Score
from cabafl.learning.task import TrainingResult
from cabafl.lifecycle.simulate import resume
from cabafl.lifecycle.stopping import Stopped
from cabafl.methods.base import Job, LossReason, Method, Server, Upload, Weights
from cabafl.recording.events import Evaluated, Event
from tests.lasting import LastingPools
from tests.lifecycle.test_resume import StopAt
from tests.runs import same_bytes, settings
from tests.scripted import fleet, vector

MODELS = [vector(1, 8), vector(4, 2), vector(10, 20), vector(0, 1)]
# Polynomial with g = 1: shares 1, 2/3, 1/2, 2/5. (1, 8) -> (3, 4) -> (6.5, 12) -> (3.9, 7.6)
POLYNOMIAL = [(1.0, 8.0), (3.0, 4.0), (6.5, 12.0), (3.9, 7.6)]
# Exponential with decay 0.5: (1, 8) -> (2.5, 5) -> (6.25, 12.5) -> (3.125, 6.75)
EXPONENTIAL = [(1.0, 8.0), (2.5, 5.0), (6.25, 12.5), (3.125, 6.75)]
RULES = {"polynomial": AverageRule("polynomial", power=1.0), "exponential": AverageRule("exponential", decay=0.5)}
EXPECTED = {"polynomial": POLYNOMIAL, "exponential": EXPONENTIAL}


class Recites(Method):
    """Publishes `MODELS`, one per upload."""

    name, kind, paper = "recites", "asynchronous", "none"

    def start(self, server: Server) -> None:
        self.next = 0
        server.dispatch(0, server.initial)

    def on_upload(self, server: Server, upload: Upload) -> None:
        server.publish(MODELS[self.next])
        self.next += 1
        if self.next < len(MODELS):
            server.dispatch(0, server.initial)

    def on_loss(self, server: Server, job: Job, reason: LossReason) -> None:
        raise AssertionError(reason)


class Judge:
    """Keeps the models it evaluates. The "loss" of a model is its first number, and nothing is ever correct."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, ...]] = []

    def __call__(self, job: ExecutorJob) -> Any:
        if isinstance(job, EvaluateJob):
            self.seen.append(tuple(job.weights.tolist()))
            return Score(((0.0,),), float(job.weights[0]), 1)
        return TrainingResult(job.weights)


def setup(rule: AverageRule | None, judge: Judge, events: list[Event]) -> EngineSetup:
    return EngineSetup(
        method=Recites(),
        executor=LazyExecutor(1, [], judge),
        initial=vector(-1, -2),
        emit=events.append,
        seed=1,
        slots=1,
        limits=Limits(seconds=100.0, evaluate_versions=1),
        trainable=2,
        average=rule,
    )


def on_virtual_clock(rule: AverageRule | None, judge: Judge, events: list[Event]) -> VirtualEngine:
    engine = VirtualEngine(setup(rule, judge, events), fleet([1.0]))
    engine.run()
    return engine


def on_wall_clock(rule: AverageRule | None, judge: Judge, events: list[Event]) -> WallEngine:
    engine = WallEngine(setup(rule, judge, events), 1)
    engine.handle(Joined(0.0, 0, 10))
    engine.handle(Started(0.0))
    for number in range(len(MODELS)):
        engine.handle(Arrived(1.0 + number, number, vector(0, 0), 1.0, 1.0))
    engine.handle(Passed(100.0))
    engine.conclude()
    return engine


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("clock", [on_virtual_clock, on_wall_clock])
def test_worked_numbers(clock: Any, kind: str) -> None:
    judge, events = Judge(), list[Event]()
    engine = clock(RULES[kind], judge, events)
    rows = [event for event in events if isinstance(event, Evaluated)]
    assert [row.version for row in rows][:5] == [0, 1, 2, 3, 4]
    averaged = [model for model in judge.seen if model not in [tuple(m.tolist()) for m in MODELS]]
    assert averaged[:2] == [(-1.0, -2.0), (-1.0, -2.0)]  # before the first version, both are the initial model
    for found, expected in zip(averaged[2:], EXPECTED[kind][1:], strict=True):  # the first average is the first model
        assert found == pytest.approx(expected, rel=1e-6)
    assert [row.averaged_loss for row in rows[1:5]] == pytest.approx([x for x, _ in EXPECTED[kind]], rel=1e-6)
    assert [row.loss for row in rows[1:5]] == [1.0, 4.0, 10.0, 0.0]  # the published models, as without averaging
    assert engine.model.tolist() == [0.0, 1.0]
    assert engine.result.tolist() == pytest.approx(EXPECTED[kind][-1], rel=1e-6)


def test_without_averaging_the_result_is_the_last_model() -> None:
    judge, events = Judge(), list[Event]()
    engine = on_virtual_clock(None, judge, events)
    assert engine.result is engine.model
    assert len(judge.seen) == 5  # one evaluation per version, not two
    assert all(row.averaged_value is None for row in events if isinstance(row, Evaluated))


@given(st.floats(0, 30), st.integers(1, 60))
def test_the_polynomial_average_is_a_weighted_mean(power: float, count: int) -> None:
    """All weights are at least 0 and add up to 1: the average of one constant model is that model."""
    rule, average = AverageRule("polynomial", power=power), RunningAverage(vector(0, 0))
    spread = RunningAverage(vector(0, 0))
    for number in range(count):
        average.add(vector(3, -5), rule)
        spread.add(vector(number, -number), rule)
    assert average.model().tolist() == pytest.approx([3, -5], rel=1e-6)
    assert 0 <= spread.model()[0] <= count - 1
    mean_age = (count - 1) - float(spread.model()[0])
    assert mean_age <= (count - 1) / 2 + 1e-3  # the plain mean (g = 0) is the oldest


def test_the_plain_mean_is_power_0() -> None:
    rule, average = AverageRule("polynomial", power=0.0), RunningAverage(vector(7, 7))
    for model in MODELS:
        average.add(model, rule)
    assert average.model().tolist() == pytest.approx(np.mean(MODELS, axis=0).tolist(), rel=1e-6)


pytestmark = pytest.mark.usefixtures("no_pixels")
AVERAGED = ["run.average=polynomial", "run.average_power=3"]


def digest_of_both(one: Path, other: Path) -> None:
    same_bytes(one, other)
    assert (one / "model-raw.safetensors").read_bytes() == (other / "model-raw.safetensors").read_bytes()


@pytest.mark.parametrize("method", ["cabafl", "fedbuff"])
def test_same_bytes_with_workers_and_after_stops(method: str, lasting: LastingPools, tmp_path: Path) -> None:
    simulate(load_experiment(None, settings(method, *AVERAGED, "run.workers=0")), tmp_path / "whole")
    with lasting.serving():
        simulate(load_experiment(None, settings(method, *AVERAGED, "run.workers=2")), tmp_path / "workers")
    digest_of_both(tmp_path / "whole", tmp_path / "workers")
    parts = load_experiment(None, settings(method, *AVERAGED, "run.workers=0", "run.checkpoint_every=0.01"))
    with pytest.raises(Stopped):
        simulate(parts, tmp_path / "parts", StopAt(60))
    with pytest.raises(Stopped):
        resume(tmp_path / "parts", StopAt(40))
    assert resume(tmp_path / "parts") is not None
    digest_of_both(tmp_path / "whole", tmp_path / "parts")


def test_the_published_models_do_not_depend_on_averaging(tmp_path: Path) -> None:
    plain = simulate(load_experiment(None, settings("fedbuff", "run.workers=0")), tmp_path / "plain")
    averaged = simulate(load_experiment(None, settings("fedbuff", *AVERAGED, "run.workers=0")), tmp_path / "averaged")
    raw: dict[str, Weights] = load_file(tmp_path / "averaged/model-raw.safetensors")
    last = load_file(tmp_path / "plain/model.safetensors")
    assert all(np.array_equal(raw[name], last[name]) for name in last)
    taken = load_file(tmp_path / "averaged/model.safetensors")
    assert not all(np.array_equal(taken[name], last[name]) for name in last)
    assert list(averaged.metrics["accuracy"]) == list(plain.metrics["accuracy"])
    assert not (tmp_path / "plain/model-raw.safetensors").exists()
    state = {name: tensor.numpy() for name, tensor in averaged.model.state_dict().items()}
    assert all(np.array_equal(state[name], taken[name]) for name in taken)  # the result has the averaged model, too
    summary = json.loads((tmp_path / "averaged/summary.json").read_text())
    rows = averaged.metrics
    assert summary["averaged"]["final_accuracy"] == rows["averaged_accuracy"].iloc[-1]
    assert summary["final_accuracy"] == rows["accuracy"].iloc[-1]
    assert {k: v for k, v in summary.items() if k not in ("averaged", "wall_seconds")} == {
        k: v for k, v in plain.summary.items() if k != "wall_seconds"
    }
