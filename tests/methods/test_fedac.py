"""FedAC: the worked numbers, fresh uploads, a liar's variates."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.execution.base import TrainJob
from cabafl.learning.task import TrainingResult
from cabafl.methods.fedac import FedAC, FedACParameters
from cabafl.methods.variates import LARGEST
from tests.methods.staged import staged
from tests.scripted import World, fleet, timetable, vector

UPDATES = {0: (0.1, 0.02), 1: (0.0, 0.2), 2: (-0.1, 0.1), 4: (0.05, 0.05)}  # by job


def train(job: TrainJob) -> TrainingResult:
    return TrainingResult(job.weights + vector(*UPDATES[job.number]), steps=2)


def test_two_steps() -> None:
    """Devices 0 and 1 fill the first buffer. Device 2, sent (1, 0) at the start, and device 0 again fill the second."""
    sends = [(vector(0.8, 0), 0), (vector(1, -0.1), 0), (vector(1, 0), 0)]
    method = staged(FedAC, FedACParameters(buffer=2), sends)
    made = World(
        method,
        timetable({0: [1.0, 3.0], 1: [2.0, 100.0], 2: [4.0], 3: [100.0], 4: [100.0]}),
        train,
        initial=vector(0.8, 0),
        slots=3,
        limits=Limits(seconds=5.5),
        learning_rate=0.1,
        picks=[0, 1, 2, 3, 0, 1, 4],
    )
    made.engine.start()
    while made.engine.version < 1:
        assert made.engine.step()
    assert made.engine.now == 2.0
    np.testing.assert_allclose(made.published[0], (1.002023856, 0.002023857), atol=1e-7)
    np.testing.assert_allclose(method.variates.common, (-0.247549, -0.554412), atol=1e-6)
    weights = made.publications()[0].facts["weights"]
    assert weights[0] / weights[1] == pytest.approx(0.980581, abs=1e-6)
    while made.engine.version < 2:
        assert made.engine.step()
    assert made.engine.now == 5.0
    np.testing.assert_allclose(made.published[1], (1.003642363, 0.003381611), atol=1e-7)
    np.testing.assert_allclose(method.variates.common, (-0.204323, -0.323128), atol=1e-6)
    assert made.publications()[1].facts["weights"] == pytest.approx([0.1 / 1.1, 1 / 1.1])
    assert method.sent.keys() == method.in_flight.keys(), "c is remembered for jobs in flight only"


@pytest.mark.parametrize(("step", "factor"), [("full", 1.0), ("share", 2 / 5)])
def test_how_far_the_variate_of_the_server_follows(step: Any, factor: float) -> None:
    made = World(
        FedAC(FedACParameters(buffer=2, variate_step=step)),
        fleet([1.0, 1.0, 9.0, 9.0, 9.0]),
        lambda job: TrainingResult(job.weights + vector(0.1, 0.2), steps=2),
        initial=vector(0, 0),
        slots=2,
        limits=Limits(seconds=1.0),
        learning_rate=0.1,
        picks=[0, 1, 2, 3, 4],
    ).run()
    method = made.engine.method
    assert isinstance(method, FedAC)
    np.testing.assert_allclose(method.variates.common, np.array([-0.5, -1.0]) * factor, rtol=1e-5)


@pytest.mark.parametrize(("fresh", "share"), [("one", 0.5), ("floor", 0.1 / 1.1)])
def test_a_fresh_upload_weighs_one_or_the_floor(fresh: Any, share: float) -> None:
    """Device 0 was sent the present model; device 1 an earlier one, and agrees fully with what happened since."""
    method = staged(FedAC, FedACParameters(buffer=2, fresh=fresh), [(vector(0.5, 0), 0), (vector(1, 0), 0)])
    made = World(
        method,
        fleet([1.0, 1.0]),
        lambda job: TrainingResult(job.weights + vector(0.1, 0.0)),
        initial=vector(0, 0),
        slots=2,
        limits=Limits(seconds=1.0),
        picks=[1, 0],
    ).run()
    weights = made.publications()[-1].facts["weights"]
    assert dict(zip(made.publications()[-1].facts["devices"], weights, strict=True))[0] == pytest.approx(share)


def test_a_liar_cannot_make_corrections_infinite() -> None:
    made = World(
        FedAC(FedACParameters(buffer=1)),
        fleet([1.0]),
        lambda job: TrainingResult(vector(1e14, -1e14)),
        initial=vector(0, 0),
        slots=1,
        limits=Limits(seconds=50.5),
    ).run()
    assert made.engine.ledger.uploads == 50
    corrections = [job.correction for job in made.executor.trained if job.correction is not None]
    assert np.abs(corrections).max() <= 2 * LARGEST
    assert np.isfinite(made.engine.model).all()
