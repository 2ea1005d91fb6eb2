"""CA2FL: the two steps of its specification and repeated devices."""

import numpy as np

from cabafl.engine.core import Limits
from cabafl.methods.ca2fl import CA2FL, CA2FLParameters
from tests.methods.trainers import updates_in_turn
from tests.scripted import World, fleet, vector


def test_two_steps() -> None:
    world = World(
        CA2FL(CA2FLParameters(buffer=2)),
        fleet([1.0, 2.0, 0.5]),
        updates_in_turn([(0.3, 0.0), (-0.1, 0.2), (0.1, 0.1), (0.2, -0.4)]),
        initial=vector(1, 1),
        slots=2,
        limits=Limits(seconds=2.5),
        picks=[0, 1, 0, 2],
    )
    method = world.engine.method
    assert isinstance(method, CA2FL)
    world.engine.start()
    while world.engine.version < 1:
        world.engine.step()
    np.testing.assert_allclose(method.mean, [0.0666667, 0.0666667], atol=1e-7)  # models are float32, and so are updates
    while world.engine.step():
        pass
    # Uploads: device 0 at 1, devices 1 and 0 at 2, device 2 at 2.5.
    np.testing.assert_allclose(world.published, [(1.1, 1.1), (1.1666667, 1.0166667)], rtol=1e-6)
    np.testing.assert_allclose(world.published[0] - vector(1, 1), [0.1, 0.1], atol=2e-7)
    np.testing.assert_allclose(world.published[1] - world.published[0], [0.0666667, -0.0833333], atol=2e-7)
    np.testing.assert_allclose(method.mean, [0.0666667, -0.0333333], atol=1e-7)
    assert sorted(method.cached) == [0, 1, 2]
    assert world.dispatches[:4] == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (2, 2, 0)]
    np.testing.assert_allclose([model for _, _, model in world.sent[:4]], [(1, 1)] * 3 + [(1.1, 1.1)], rtol=1e-6)


def test_same_device_twice_in_a_buffer() -> None:
    for refresh, expected in (("step", 1 + 1.5), ("immediate", 1 + 1.0)):
        world = World(
            CA2FL(CA2FLParameters(buffer=2, refresh=refresh)),  # type: ignore[arg-type]
            fleet([1.0]),
            lambda job: vector(float(job.weights[0]) + 1.0 + job.number),
            initial=vector(1),
            slots=1,
            limits=Limits(seconds=2.0),
        ).run()
        np.testing.assert_allclose(world.published[0], [expected], rtol=1e-6)


def test_statistics_are_no_directions() -> None:
    """The second entry is a variance: small after every upload, never below, however late the uploads are."""
    world = World(
        CA2FL(CA2FLParameters(buffer=1)),
        fleet([1.0, 1.0, 1.0, 1.0]),
        lambda job: vector(float(job.weights[0]) + 1.0, 0.25),
        initial=vector(1, 1),
        slots=4,
        limits=Limits(seconds=3.0),
        trainable=1,
    ).run()
    assert [model[1] for model in world.published] == [0.25] * len(world.published)
    assert len(world.published) > 8
