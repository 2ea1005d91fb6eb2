"""AREA: the worked numbers, and a global model that is the mean of all devices' last models."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.fleet import Faults
from cabafl.methods.area import AREA, AREAParameters
from cabafl.rng import rng
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
