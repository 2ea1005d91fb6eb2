"""Every method with places that nobody takes: more devices are expected than join, or some have no samples."""

from typing import Any

import numpy as np
import pytest

from cabafl import methods
from cabafl.engine.core import Limits
from cabafl.execution.base import TrainJob
from cabafl.fleet import Fleet
from cabafl.learning.task import TrainingResult
from cabafl.rng import rng
from tests.scripted import World, vector

SIZES = [40, 7, 90, 12, 55, 31]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "fedavg": [{}, {"normaliser": "all", "weighting": "uniform"}, {"normaliser": "all"}],
    "safa": [{}, {"population": "all"}],
    "ca2fl": [{}, {"refresh": "immediate"}],
}
# The page of EvenKeel allows other draws: see test_evenkeel_twin.py
CASES = [(name, each) for name in methods.NAMES if name != "evenkeel" for each in OPTIONS.get(name, [{}])]


def trained(job: TrainJob) -> TrainingResult:
    own, draw = rng(5, "pull", job.device), rng(8, "job", job.number)
    change = job.objective.lr_scale * own.normal(0, 0.2, 5) + draw.normal(0, 0.1, 5)
    epochs = job.objective.epochs or 2
    weights = (job.weights + change).astype(np.float32)
    return TrainingResult(weights, draw.uniform(0, 3), draw.uniform(0, 9), int(draw.integers(1, 9)), epochs)


def world(name: str, empty: int, options: dict[str, Any]) -> World:
    cls, devices, draw = methods.find(name), len(SIZES) + empty, rng(2, "fleet")
    features, seconds, none = np.zeros((devices, 4)), np.ones(devices), np.zeros(devices)
    features[: len(SIZES)] = draw.integers(1, 30, (len(SIZES), 4))
    seconds[: len(SIZES)] = draw.uniform(1, 9, len(SIZES))
    return World(
        cls(cls.Parameters(**options).settled(50, simulated=False)),
        Fleet(np.array(SIZES + [0] * empty), seconds, none, 0.5, none, none, none, none),
        trained,
        initial=vector(0.5, -1.0, 2.0, 0.25, 1.0),
        slots=3,
        limits=Limits(seconds=150.0, slot_timeout=30.0),
        trainable=4,
        epochs=2,
        learning_rate=0.1,
        momentum=0.5,
        features=features,
    ).run()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_places_that_nobody_takes_change_nothing(name: str, options: dict[str, Any]) -> None:
    plain, roomy = world(name, 0, options), world(name, 40, options)
    assert plain.dispatches == roomy.dispatches
    np.testing.assert_allclose(roomy.published, plain.published, rtol=1e-6, atol=1e-6)
    assert len(plain.published) > 4
