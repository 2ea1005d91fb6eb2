"""SCAFFOLD: the worked numbers on real local SGD, with and without momentum; lost devices; buffers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cabafl.config import TrainingSection
from cabafl.engine.core import Limits
from cabafl.engine.inputs import Arrived, Joined, Started
from cabafl.execution.base import TrainJob
from cabafl.fleet import Absence, Faults
from cabafl.learning.task import FlatModel, TrainingResult
from cabafl.learning.training import LocalTraining, train
from cabafl.methods.scaffold import Scaffold, ScaffoldParameters
from cabafl.methods.variates import effective_steps
from tests.fleet_play import wall_engine
from tests.methods.trainers import Quadratic, half_square
from tests.scripted import World, fleet, vector

TARGETS = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])


def quadratic(momentum: float) -> Callable[[TrainJob], TrainingResult]:
    """Two steps of local SGD on |w - t_k|^2 / 2, corrected as the job says."""
    model = FlatModel(Quadratic())

    def run(job: TrainJob) -> TrainingResult:
        assert job.correction is not None
        model.load(job.weights)
        section = TrainingSection(epochs=2, batch_size=1, learning_rate=0.1, momentum=momentum)
        how = LocalTraining(section, job.objective, loss=half_square, correction=model.trained_parts(job.correction))
        figures = train(model.network, TARGETS[job.device : job.device + 1], torch.zeros(1), how, seed=job.number)
        return TrainingResult(model.save(), *figures)

    return run


def world(momentum: float = 0.0, **settings: Any) -> World:
    return World(
        Scaffold(ScaffoldParameters()),
        fleet([1.0, 1.0, 1.0]),
        settings.pop("train", quadratic(momentum)),
        **{
            "initial": vector(0, 0),
            "slots": 2,
            "limits": Limits(seconds=2.5),
            "learning_rate": 0.1,
            "momentum": momentum,
            "picks": [0, 1, 0, 2],
            **settings,
        },
    ).run()


def test_two_rounds() -> None:
    made = world()
    np.testing.assert_allclose(made.published[0], (0.095, 0.19), rtol=1e-6)
    np.testing.assert_allclose(made.published[1], (0.046867, 0.369233), atol=1e-6)
    method = made.engine.method
    assert isinstance(method, Scaffold)
    np.testing.assert_allclose(method.variates.common, (0.054889, -0.808556), atol=1e-6)
    corrections = np.array([job.correction for job in made.executor.trained])
    expected = [(0, 0), (0, 0), (0.633333, -0.633333), (-0.316667, -0.633333)]
    np.testing.assert_allclose(corrections, expected, atol=1e-6)
    ledger = made.engine.ledger
    assert (ledger.dispatches, ledger.downloads, ledger.uploads) == (6, 12, 4)


def test_momentum_is_taken_into_account() -> None:
    made = world(momentum=0.5)
    np.testing.assert_allclose(made.published[1], (0.0528, 0.456), atol=1e-6)
    method = made.engine.method
    assert isinstance(method, Scaffold)
    np.testing.assert_allclose(method.variates.common, (0.072533, -0.789333), atol=1e-6)


@pytest.mark.parametrize(("steps", "momentum", "expected"), [(1, 0.9, 1.0), (2, 0.5, 2.5), (7, 0.0, 7.0)])
def test_effective_steps(steps: int, momentum: float, expected: float) -> None:
    assert effective_steps(steps, momentum) == pytest.approx(expected)
    written_out = sum((1 - momentum**i) / (1 - momentum) for i in range(1, steps + 1))
    assert effective_steps(steps, momentum) == pytest.approx(written_out)


def test_a_lost_device_is_absent_from_both_sums() -> None:
    made = world(faults=Faults(trace={1: [Absence(0.5, 100.0)]}), picks=[0, 1])
    np.testing.assert_allclose(made.published[0], (0.19, 0.0), atol=1e-6)
    method = made.engine.method
    assert isinstance(method, Scaffold)
    assert 1 not in method.variates.own
    assert made.publications()[0].facts["devices"] == [0]


def test_a_round_in_which_nobody_arrives_changes_nothing() -> None:
    made = world(faults=Faults(seed=1, loss=1.0), picks=[])
    assert made.published == []
    method = made.engine.method
    assert isinstance(method, Scaffold)
    assert not method.variates.common.any()
    assert len(made.dispatches) > 4


def test_buffers_are_the_mean_of_the_uploads() -> None:
    """Of three entries the last is a buffer: it is averaged, not stepped, and has no variate."""
    made = World(
        Scaffold(ScaffoldParameters(server_lr=2.0)),
        fleet([1.0, 1.0]),
        lambda job: TrainingResult(job.weights + vector(0.1, 0.2, 1.0 + job.device), steps=2),
        initial=vector(1, 1, 5),
        slots=2,
        limits=Limits(seconds=2.5),
        trainable=2,
        learning_rate=0.1,
    ).run()
    np.testing.assert_allclose(made.published[0], (1.2, 1.4, 6.5), rtol=1e-6)
    assert [job.correction[2] for job in made.executor.trained if job.correction is not None] == [0.0] * 4


@pytest.mark.parametrize("sizes", [[10, 0, 30, 0], [10, 20, 30, 40]])
def test_c_is_the_mean_over_all_devices_that_have_samples(sizes: list[int]) -> None:
    made = World(
        Scaffold(ScaffoldParameters()),
        fleet([1.0] * 4, sizes),
        lambda job: TrainingResult(job.weights + vector(0.1, 0.2 * job.device)),
        initial=vector(0, 0),
        slots=2,
        limits=Limits(seconds=30.5),
    ).run()
    method = made.engine.method
    assert isinstance(method, Scaffold)
    own = [method.variates.own[device] for device in np.flatnonzero(sizes).tolist()]
    np.testing.assert_allclose(method.variates.common, np.mean(own, axis=0), rtol=1e-5)


def test_c_stays_the_mean_when_a_device_joins() -> None:
    engine = wall_engine("scaffold", lambda event: None)
    for device in (0, 1):
        engine.handle(Joined(0.0, device, 10))
    engine.handle(Started(0.0))
    for number in range(8):
        if number == 5:
            engine.handle(Joined(1.0, 2, 10))
        for job, flight in list(engine.flights.items()):
            weights = flight.weights + np.float32(0.125 * (1 + flight.device))
            engine.handle(Arrived(2.0 + number, job, weights, 1.0, 1.0))
    method = engine.method
    assert isinstance(method, Scaffold)
    assert sorted(method.variates.own) == [0, 1, 2]
    np.testing.assert_allclose(method.variates.common, np.mean([*method.variates.own.values()], axis=0), rtol=1e-5)


def test_one_absurd_upload_does_not_stay_in_c() -> None:
    """The variate of a device that once moved beyond all bounds is cut; c moves by what it was cut to."""
    made = World(
        Scaffold(ScaffoldParameters()),
        fleet([1.0, 1.0]),
        lambda job: TrainingResult(job.weights + np.float32(1e9 if job.number == 0 else 0.125)),
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=1.5),
        learning_rate=1.0,
    ).run()
    method = made.engine.method
    assert isinstance(method, Scaffold)
    np.testing.assert_allclose(method.variates.common, np.mean([*method.variates.own.values()], axis=0), rtol=1e-5)
