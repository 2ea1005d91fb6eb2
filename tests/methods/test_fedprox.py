"""FedProx: the numbers of its specification, partial work and sampling."""

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.methods.fedavg import FedAvg, FedAvgParameters
from cabafl.methods.fedprox import FedProx, FedProxParameters
from tests.methods.trainers import quadratic_trainer
from tests.scripted import World, fleet, vector


@pytest.mark.parametrize(
    ("mu", "expected"), [(1.0, (-0.115, 0.805)), (0.01, (-0.11995, 0.83965)), (0.0, (-0.12, 0.84))]
)
def test_round_of_quadratic_devices(mu: float, expected: tuple[float, float]) -> None:
    world = World(
        FedProx(FedProxParameters(mu=mu)),
        fleet([5.0, 9.0], [1, 3]),
        quadratic_trainer(2),
        initial=vector(0, 0),
        slots=2,
        limits=Limits(seconds=9.0),
    ).run()
    np.testing.assert_allclose(world.published[0], expected, rtol=1e-6)
    assert world.engine.ledger.transfers == 4 + 2


@pytest.mark.parametrize(("mu", "factor"), [(0.0, 0.386), (0.01, 0.3856201), (1.0, 0.349)])
def test_three_steps(mu: float, factor: float) -> None:
    """A round of one device publishes its exact model."""
    world = World(
        FedProx(FedProxParameters(mu=mu)),
        fleet([5.0]),
        quadratic_trainer(3),
        initial=vector(0, 0),
        slots=1,
        limits=Limits(seconds=5.0),
    ).run()
    np.testing.assert_allclose(world.published[0], factor * np.array([1.0, 2.0]), rtol=1e-6)


def test_mu_zero_equals_fedavg() -> None:
    def run(method: FedAvg) -> World:
        return World(
            method,
            fleet([1.0, 2.0, 3.0, 1.5], [1, 2, 3, 4]),
            lambda job: job.weights + vector(job.device, job.number),
            initial=vector(0, 0),
            slots=2,
            limits=Limits(seconds=20.0),
        ).run()

    plain, proximal = run(FedAvg(FedAvgParameters())), run(FedProx(FedProxParameters(mu=0.0)))
    assert plain.dispatches == proximal.dispatches
    np.testing.assert_array_equal(plain.published, proximal.published)


def test_partial_work_trains_fewer_epochs() -> None:
    world = World(
        FedProx(FedProxParameters(partial_fraction=0.5)),
        fleet([1.0] * 6),
        lambda job: job.weights,
        initial=vector(0),
        slots=6,
        limits=Limits(seconds=50.0),
        epochs=5,
    ).run()
    epochs = [job.objective.epochs for job in world.executor.trained]
    assert set(epochs) == {None, 1, 2, 3, 4}
    assert 0.4 < np.mean([e is not None for e in epochs]) < 0.6


def test_proportional_sampling_draws_by_samples_with_replacement() -> None:
    world = World(
        FedProx(FedProxParameters(sampling="proportional", weighting="uniform")),
        fleet([1.0, 1.0], [1, 9]),
        lambda job: vector(float(job.device)),
        initial=vector(0),
        slots=4,
        limits=Limits(seconds=300.0),
    ).run()
    assert np.mean(world.published) == pytest.approx(0.9, abs=0.03)  # a device counts once per draw
