"""AREA: the worked numbers, and a global model that is the mean of all devices' last models."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.engine.inputs import Arrived, Joined, Started
from cabafl.fleet import Faults
from cabafl.methods.area import AREA, AREAParameters
from cabafl.rng import rng
from tests.fleet_play import INITIAL, wall_engine
from tests.scripted import World, fleet, vector


def test_every_upload_replaces_its_devices_model() -> None:
    made = World(
        AREA(AREAParameters(buffer=1)),
        fleet([1.0, 1.0, 1.0]),
        [vector(0.4, 1.3), vector(1.2, 0.7), vector(0.5, 1.0)],
        initial=vector(1, 1),
        slots=1,
        limits=Limits(seconds=3.5),
        picks=[0, 1, 0, 2],
    ).run()
    np.testing.assert_allclose(made.published, [(0.8, 1.1), (0.866667, 1.0), (0.9, 0.9)], atol=1e-6)


@pytest.mark.parametrize("buffer", [1, 3, 4])
def test_the_global_model_is_the_mean_of_all_last_models(buffer: int) -> None:
    made = World(
        AREA(AREAParameters(buffer=buffer)),
        fleet(np.linspace(1, 3, 9).tolist()),
        lambda job: (job.weights + rng(1, "x", job.number).normal(0, 1, 5)).astype(np.float32),
        initial=vector(1, 2, 3, 4, 5),
        slots=4,
        limits=Limits(seconds=None, max_dispatches=400),
        faults=Faults(seed=2, loss=0.2),
    )
    method: Any = made.engine.method
    publish = made.engine.publish

    def checked(weights: Any, /, **facts: Any) -> None:
        last = [method.last.get(device, made.engine.initial) for device in range(9)]
        np.testing.assert_allclose(weights, np.mean(last, axis=0, dtype=np.float64), rtol=1e-5, atol=1e-6)
        publish(weights, **facts)

    made.engine.publish = checked  # type: ignore[method-assign]
    made.run()
    assert made.engine.version == made.engine.ledger.uploads // buffer > 50


@pytest.mark.parametrize(("weighting", "scales"), [("samples", {0: 0.3, 1: 0.6, 2: 2.1}), ("none", {0: 1, 1: 1, 2: 1})])
def test_samples_count_through_the_learning_rate(weighting: Any, scales: dict[int, float]) -> None:
    made = World(
        AREA(AREAParameters(weighting=weighting)),
        fleet([1.0, 1.0, 1.0], [10, 20, 70]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=3,
        limits=Limits(seconds=1.5),
    ).run()
    assert {job.device: job.objective.lr_scale for job in made.executor.trained} == pytest.approx(scales)


def test_devices_without_samples_do_not_count() -> None:
    made = World(
        AREA(AREAParameters(buffer=1)),
        fleet([1.0, 1.0, 1.0, 1.0], [10, 0, 30, 0]),
        lambda job: vector(job.device),
        initial=vector(7),
        slots=2,
        limits=Limits(seconds=1.5),
        picks=[0, 2],
    ).run()
    assert [model[0] for model in made.published] == [3.5, 1.0]
    assert {job.device: job.objective.lr_scale for job in made.executor.trained} == {0: 0.5, 2: 1.5}


def test_a_device_that_joins_later_counts_with_the_initial_model() -> None:
    """Eight devices may join a fleet, two have: the model is the mean of two, then of three."""
    engine = wall_engine("area", lambda event: None)
    for device in (0, 1):
        engine.handle(Joined(0.0, device, 10))
    engine.handle(Started(0.0))
    uploads = [(device, INITIAL + np.float32(0.25 * (device + 1))) for device in (0, 1, 0, 2, 0, 1)]
    for number, (device, weights) in enumerate(uploads):
        if number == 3:
            np.testing.assert_allclose(engine.model, INITIAL + 0.375)
            engine.handle(Joined(1.0, 2, 10))
        flight = engine.flight_of(device)
        assert flight is not None
        assert flight.objective.lr_scale == 1.0
        engine.handle(Arrived(2.0, flight.number, weights, 1.0, 1.0))
    np.testing.assert_allclose(engine.model, INITIAL + 0.5, rtol=1e-6)
