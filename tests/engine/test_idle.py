"""The set of idle devices."""

import numpy as np

from cabafl.engine.idle import IdleSet
from cabafl.rng import Stream


def test_idle_draws_are_uniform_and_respect_the_excluded_device() -> None:
    idle = IdleSet(5, np.arange(5))
    idle.remove(1)
    stream = Stream(7)
    drawn = [idle.draw(stream, without=2) for _ in range(3000)]
    shares = np.bincount(drawn, minlength=5) / 3000
    np.testing.assert_allclose(shares, [1 / 3, 0, 0, 1 / 3, 1 / 3], atol=0.04)
    assert sorted(idle.draw_many(stream, 9)) == [0, 2, 3, 4]
