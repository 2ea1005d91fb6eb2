"""FedAvg: means, rounds and timeouts, with the numbers of its specification."""

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.methods.fedavg import FedAvg, FedAvgParameters
from tests.methods.trainers import CENTRES, quadratic_trainer
from tests.scripted import World, fleet, vector

THREE = [vector(1, 2), vector(3, 0), vector(-1, 4)]


def three_devices(**parameters: object) -> World:
    return World(
        FedAvg(FedAvgParameters(**parameters)),  # type: ignore[arg-type]
        fleet([1.0, 2.0, 3.0], [10, 30, 60]),
        lambda job: THREE[job.device],
        initial=vector(2, 2),
        slots=3,
        limits=Limits(seconds=4.0),
    ).run()


def test_mean_weighted_by_samples() -> None:
    world = three_devices()
    np.testing.assert_allclose(world.published[0], [0.4, 2.6], rtol=1e-6)
    sent = {(t, model) for t, _, model in world.sent}
    assert sent == {(0.0, (2.0, 2.0)), (3.0, tuple(world.published[0].tolist()))}  # each round trains the newest model
    assert len(world.sent) == 6


def test_uniform_mean() -> None:
    np.testing.assert_allclose(three_devices(weighting="uniform").published[0], [1.0, 2.0], rtol=1e-6)


def test_normaliser_over_all_devices_mixes_in_the_old_model() -> None:
    world = World(
        FedAvg(FedAvgParameters(normaliser="all")),
        fleet([1.0, 1.0], [1, 3]),
        lambda job: vector(8, 8),
        initial=vector(0, 4),
        slots=1,
        limits=Limits(seconds=1.0),
        picks=[0],
    ).run()
    np.testing.assert_allclose(world.published[0], [2.0, 5.0], rtol=1e-6)


@pytest.mark.parametrize(("steps", "factor"), [(2, 0.24), (3, 0.386)])
def test_one_round_of_quadratic_devices(steps: int, factor: float) -> None:
    world = World(
        FedAvg(FedAvgParameters()),
        fleet([5.0, 9.0], [1, 3]),
        quadratic_trainer(steps),
        initial=vector(0, 0),
        slots=2,
        limits=Limits(seconds=9.0),
    ).run()
    uploads = {job.device: factor * CENTRES[job.device].numpy() for job in world.executor.trained[:2]}
    expected = 0.25 * uploads[0] + 0.75 * uploads[1]
    np.testing.assert_allclose(world.published[0], expected, rtol=1e-6)
    if steps == 2:
        np.testing.assert_allclose(world.published[0], [-0.12, 0.84], rtol=1e-6)
    assert world.publications()[0].time == 9.0  # the round lasts as long as its slowest device
    ledger = world.engine.ledger
    assert ledger.uploads == 2
    assert ledger.downloads == 2 + 2  # the next round starts at once
    assert world.dispatches[2][0] == 9.0


@pytest.mark.parametrize(("prox", "factor"), [(0.0, 0.24), (0.01, 0.2399), (1.0, 0.23)])
def test_proximal_gradient_goes_through_the_momentum(prox: float, factor: float) -> None:
    world = World(
        FedAvg(FedAvgParameters()),
        fleet([5.0]),
        quadratic_trainer(2, prox),
        initial=vector(0, 0),
        slots=1,
        limits=Limits(seconds=5.0),
    ).run()
    np.testing.assert_allclose(world.published[0], factor * CENTRES[0].numpy(), rtol=1e-6)


def test_a_round_of_one_device_publishes_its_exact_model() -> None:
    world = World(
        FedAvg(FedAvgParameters()),
        fleet([1.0, 1.0]),
        lambda job: vector(0.1, 0.2),
        initial=vector(0, 0),
        slots=1,
        limits=Limits(seconds=1.0),
    ).run()
    np.testing.assert_array_equal(world.published[0], vector(0.1, 0.2))


def test_round_timeout_averages_the_uploads_received() -> None:
    world = World(
        FedAvg(FedAvgParameters(round_timeout=2.0)),
        fleet([1.0, 1.5, 9.0], [10, 30, 60]),
        lambda job: THREE[job.device],
        initial=vector(0, 0),
        slots=3,
        limits=Limits(seconds=4.0),
    ).run()
    assert [event.time for event in world.publications()] == [2.0, 4.0]
    np.testing.assert_allclose(world.published[0], [2.5, 0.5], rtol=1e-6)
    assert world.engine.ledger.losses == {"cancelled": 2}
    assert (world.engine.ledger.downloads, world.engine.ledger.uploads) == (9, 4)


def test_an_empty_round_keeps_the_model() -> None:
    world = World(
        FedAvg(FedAvgParameters(round_timeout=2.0)),
        fleet([9.0, 9.0]),
        lambda job: vector(1),
        initial=vector(5),
        slots=2,
        limits=Limits(seconds=5.0),
    ).run()
    assert world.published == []
    assert [t for t, _, _ in world.dispatches] == [0.0, 0.0, 2.0, 2.0, 4.0, 4.0]
    np.testing.assert_array_equal(world.engine.model, vector(5))


def test_a_round_continues_without_a_lost_device() -> None:
    world = World(
        FedAvg(FedAvgParameters()),
        fleet([1.0, 2.0], [1, 1]),
        lambda job: vector(np.inf) if job.device == 1 else vector(3),
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=2.0),
    ).run()
    np.testing.assert_array_equal(world.published[0], vector(3))
    assert world.engine.ledger.losses == {"rejected": 1}
