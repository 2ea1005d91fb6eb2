"""FedSA: the trace of its specification, learning rates, aggregation, rounds and restarts."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.fleet import Faults
from cabafl.fleet.faults import Absence
from cabafl.methods.fedsa import FedSA, FedSAParameters
from tests.methods.trainers import answers_in_turn
from tests.scripted import World, fleet, timetable, vector


def fedsa(train: Any, seconds: list[float], sizes: list[int], slots: int, until: float, **options: Any) -> World:
    picks = options.pop("picks", [])
    initial = options.pop("initial", vector(0, 0))
    return World(
        FedSA(FedSAParameters(**options)),
        fleet(seconds, sizes),
        train,
        initial=initial,
        slots=slots,
        limits=Limits(seconds=until),
        picks=picks,
    ).run()


def test_trace() -> None:
    answers = {0: vector(2, 0), 2: vector(0, 2), 3: vector(2, 2)}
    world = fedsa(
        lambda job: answers[job.device], [1.0, 5.0, 1.0, 1.0], [1] * 4, 2, 3.0, buffer=1, tau0=2, picks=[0, 1, 2, 3, 0]
    )
    assert world.dispatches[:6] == [(0.0, 0, 0), (0.0, 1, 0), (1.0, 2, 0), (2.0, 3, 0), (2.0, 1, 0), (3.0, 0, 0)]
    np.testing.assert_allclose(world.published, [(1, 0), (0.5, 1), (1.25, 1.5)], rtol=1e-6)
    rates = {job.device: 0.01 * job.objective.lr_scale for job in world.executor.trained}
    assert rates == pytest.approx({0: 0.005, 2: 0.0075, 3: 0.01})
    assert [model for _, _, model in world.sent[:5]] == [(0, 0), (0, 0), (1, 0), (0.5, 1), (0.5, 1)]  # W(0) to W(2)
    assert world.notes("restart") == [{"device": 1}]
    assert next(flight.started + flight.seconds for flight in world.engine.flights.values()) == 7.0
    ledger = world.engine.ledger
    assert (ledger.downloads - 1, ledger.uploads) == (5, 3)  # 8 transfers, not counting the refill at time 3


@pytest.mark.parametrize(("picks", "rate"), [((1, 1, 2, 0), 0.01), ((0, 1, 2, 1), 0.005), ((1, 1, 0, 2), 0.01)])
def test_learning_rate_follows_participation(picks: tuple[int, ...], rate: float) -> None:
    """The fourth dispatch makes the counts (1, 2, 1, 0)."""
    world = fedsa(lambda job: job.weights, [1.0] * 4, [1] * 4, 1, 4.0, buffer=1, picks=picks)
    fourth = world.executor.trained[3]
    assert [job.device for job in world.executor.trained[:4]] == list(picks)
    assert 0.01 * fourth.objective.lr_scale == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "betas", "expected"),
    [
        ({}, (0.1, 0.3), (0.4, 2.6)),
        ({"normaliser": "all"}, (0.05, 0.15), (-0.3, 3.3)),
        ({"mixing": "sequential"}, (0.1, 0.3), (0.34, 2.66)),
    ],
)
def test_aggregation(options: dict[str, Any], betas: tuple[float, float], expected: tuple[float, float]) -> None:
    answers = {0: vector(1, 2), 1: vector(3, 0)}
    world = fedsa(
        lambda job: answers[job.device],
        [1.0, 2.0, 9.0, 9.0],
        [10, 30, 60, 100],
        3,
        2.0,
        buffer=2,
        initial=vector(-1, 4),
        picks=[0, 1, 2],
        **options,
    )
    np.testing.assert_allclose(world.published[0], expected, rtol=1e-6)
    assert world.publications()[0].facts["weights"] == pytest.approx(betas, rel=1e-6)


def test_no_device_twice_in_a_round() -> None:
    """Device 1 loses its job at 2, after the upload of device 0: both are idle, but only device 1 may start again."""
    nan = vector(float("nan"))
    answers = answers_in_turn({(0, 1): vector(1), (1, 1): nan, (1, 2): vector(2), (2, 1): vector(3)})
    world = World(
        FedSA(FedSAParameters(buffer=2)),
        timetable({0: [1.0], 1: [2.0, 3.0], 2: [9.0]}),
        answers,
        initial=vector(0),
        slots=3,
        limits=Limits(seconds=4.9),
    ).run()
    assert world.dispatches[3:] == [(2.0, 1, 0)]
    assert world.published == []


def test_a_round_that_no_device_can_complete_ends() -> None:
    """Two devices, two uploads per round: device 1 leaves for good after the upload of device 0."""
    world = World(
        FedSA(FedSAParameters(buffer=2)),
        fleet([1.0, 5.0]),
        lambda job: job.weights + 4,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=4.5),
        faults=Faults(trace={1: [Absence(2.0, 100.0)]}),
    ).run()
    assert [(event.time, event.facts["devices"]) for event in world.publications()] == [
        (2.0, [0]),
        (3.0, [0]),
        (4.0, [0]),
    ]


def test_bounds_and_timeouts() -> None:
    world = fedsa(
        lambda job: job.weights + 1,
        [1.0] * 9 + [50.0],
        [1] * 10,
        4,
        40.0,
        lr_scale_min=0.5,
        lr_scale_max=2.0,
        round_timeout=3.0,
    )
    assert {0.5, 2.0} >= {
        job.objective.lr_scale for job in world.executor.trained if job.objective.lr_scale in (0.5, 2.0)
    }
    assert min(job.objective.lr_scale for job in world.executor.trained) >= 0.5
    assert max(job.objective.lr_scale for job in world.executor.trained) <= 2.0
    patient = fedsa(lambda job: job.weights + 1, [1.0] * 9 + [50.0], [1] * 10, 4, 60.0, no_restart=True)
    assert patient.notes("restart") == []
