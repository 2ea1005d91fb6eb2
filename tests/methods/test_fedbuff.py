"""FedBuff: steps with fresh and stale updates, and the partial buffer at the end."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.methods.fedbuff import FedBuff, FedBuffParameters
from cabafl.recording.events import Evaluated
from tests.methods.trainers import updates_in_turn
from tests.scripted import World, fleet, vector


@pytest.mark.parametrize(("staleness", "expected"), [("sqrt", (1.25, 0.85)), ("constant", (1.4, 0.9))])
def test_step(staleness: Any, expected: tuple[float, float]) -> None:
    """A fresh update and one of staleness 3: three steps with zero updates happen while device 1 trains."""
    quick = [(0.0, 0.0)] * 6
    world = World(
        FedBuff(FedBuffParameters(buffer=2, staleness=staleness)),
        fleet([1.0, 6.9]),
        updates_in_turn([*quick, (0.6, 0.2), (0.2, -0.4)]),
        initial=vector(1, 1),
        slots=2,
        limits=Limits(seconds=7.0),
        picks=[0, 1, 0, 0, 0, 0, 0, 0, 1],
    ).run()
    assert [event.time for event in world.publications()] == [2.0, 4.0, 6.0, 7.0]
    last = world.publications()[-1].facts["factors"]
    assert last == pytest.approx([0.5, 1.0] if staleness == "sqrt" else [1.0, 1.0])
    np.testing.assert_allclose(world.published[-1], expected, rtol=1e-6)
    assert world.engine.version == 4  # the version increases only at steps
    assert [t for t, _, _ in world.dispatches] == [0, 0, 1, 2, 3, 4, 5, 6, 6.9, 7]  # a slot is refilled at once
    assert [model for _, _, model in world.sent[:-1]] == [(1.0, 1.0)] * 9
    np.testing.assert_allclose(world.sent[-1][2], expected, rtol=1e-6)


@pytest.mark.parametrize(("flush", "last"), [(False, 3.0), (True, 4.0)])
def test_partial_buffer_at_the_end(flush: bool, last: float) -> None:
    """Seven updates of 1 each and a buffer of two: three steps, and one update is left."""
    world = World(
        FedBuff(FedBuffParameters(buffer=2, staleness="constant", flush=flush)),
        fleet([1.0]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=1,
        limits=Limits(seconds=7.5, evaluate_every=5.0),
    ).run()
    assert world.published[2] == vector(3)
    assert world.engine.version == (4 if flush else 3)
    np.testing.assert_allclose(world.engine.model, [last])
    rows = [event for event in world.events if isinstance(event, Evaluated)]
    assert (rows[-1].time, rows[-1].version) == (7.5, world.engine.version)


def test_statistics_are_no_directions() -> None:
    """The second entry is a variance: small after every upload, never below, however late the uploads are."""
    world = World(
        FedBuff(FedBuffParameters(buffer=1)),
        fleet([1.0, 1.0, 1.0, 1.0]),
        lambda job: vector(float(job.weights[0]) + 1.0, 0.25),
        initial=vector(1, 1),
        slots=4,
        limits=Limits(seconds=3.0),
        trainable=1,
    ).run()
    assert [model[1] for model in world.published] == [0.25] * len(world.published)
    assert len(world.published) > 8
