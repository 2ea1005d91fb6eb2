"""AsyncFedED: the worked numbers, bounds of the epochs, zero updates, buffers."""

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.methods.asyncfeded import AsyncFedED, AsyncFedEDParameters
from tests.methods.trainers import updates_in_turn
from tests.scripted import World, fleet, vector


def world(updates: list[tuple[float, float]], seconds: float, epochs: int = 5, **options: float) -> World:
    """Devices 0 and 1; device 1 is the slower one, so that its first upload is stale."""
    return World(
        AsyncFedED(AsyncFedEDParameters(**options)),  # type: ignore[arg-type]
        fleet([1.0, 1.5]),
        updates_in_turn(updates),
        initial=vector(0, 0),
        slots=2,
        limits=Limits(seconds=seconds),
        epochs=epochs,
        picks=[0, 1, 0, 1],
    ).run()


def test_a_fresh_and_a_stale_upload() -> None:
    made = world([(0.3, 0.4), (-0.06, 0.08)], 1.6, kappa=0.5)
    np.testing.assert_allclose(made.published[0], (0.3, 0.4), rtol=1e-6)
    np.testing.assert_allclose(made.published[1], (0.29, 0.413333), atol=1e-6)
    facts = [event.facts for event in made.publications()]
    assert [fact["staleness"] for fact in facts] == pytest.approx([0.0, 5.0], rel=1e-5)
    assert [fact["rate"] for fact in facts] == pytest.approx([1.0, 1 / 6], rel=1e-5)
    assert [fact["epochs"] for fact in facts] == [6, 4]
    sent = [flight.objective.epochs for flight in made.engine.flights.values()]
    assert sent == [6, 4], "the next jobs of both devices"


def test_epochs_stay_between_one_and_the_bound() -> None:
    made = world([(0.3, 0.4)] * 40, 40.0, epochs=2, kappa=10.0, max_epochs=3)
    assert {event.facts["epochs"] for event in made.publications()} <= {1, 2, 3}
    shrunk = world([(0.3, 0.4), (1e-6, 0.0)] * 10, 4.0, kappa=10.0)
    assert min(event.facts["epochs"] for event in shrunk.publications()) == 1
    grown = world([(0.3, 0.4)] * 40, 60.0, epochs=1, kappa=10.0, target=50.0)
    assert max(event.facts["epochs"] for event in grown.publications()) == 4, "four times the usual number"


def test_a_zero_update_changes_nothing() -> None:
    made = world([(0.0, 0.0)] * 3, 1.2)
    assert made.published == []
    assert made.engine.ledger.uploads == 1


def test_buffers_are_mixed_in() -> None:
    made = World(
        AsyncFedED(AsyncFedEDParameters(epsilon=2.0)),
        fleet([1.0]),
        lambda job: job.weights + vector(1.0, 4.0),
        initial=vector(0, 2),
        slots=1,
        limits=Limits(seconds=1.5),
        trainable=1,
    ).run()
    np.testing.assert_allclose(made.published[0], (0.5, 4.0))
