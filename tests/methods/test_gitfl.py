"""GitFL: merge, pull and rewards of its specification."""

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.methods.gitfl import GitFL, GitFLParameters
from tests.scripted import World, fleet, vector

TARGETS = {0: (1.0, 0.0), 1: (0.0, 1.0), 2: (2.0, 2.0)}  # the branches of the worked example, by device


def gitfl_example(seconds: list[float], until: float) -> World:
    """Three branches on three devices; each device always pushes its branch of the example."""
    return World(
        GitFL(GitFLParameters()),
        fleet(seconds),
        lambda job: vector(*TARGETS[job.device]),
        initial=vector(0, 0),
        slots=3,
        limits=Limits(seconds=until),
    ).run()


@pytest.mark.parametrize(
    ("seconds", "last", "until", "pulled"),
    [
        ([10.0, 19.0, 13.0], 0, 40.0, (1.0092593, 0.0740741)),
        ([9.5, 20.0, 13.0], 1, 40.0, (0.1111111, 0.9888889)),
        ([9.5, 19.0, 13.0], 2, 39.0, (1.9191919, 1.8989899)),
    ],
)
def test_merge_and_pull(seconds: list[float], last: int, until: float, pulled: tuple[float, float]) -> None:
    """Four, two and three pushes; the last one completes the versions of the example."""
    world = gitfl_example(seconds, until)
    np.testing.assert_allclose(world.published[-1], (1.1111111, 0.8888889), rtol=1e-6)
    sent = next(flight for flight in world.engine.flights.values() if flight.device == last)
    np.testing.assert_allclose(sent.weights, pulled, rtol=1e-6)
    assert sorted(world.publications()[-1].facts["weights"]) == pytest.approx([2 / 9, 3 / 9, 4 / 9])


@pytest.mark.parametrize(
    ("version", "device", "reward"),
    [(4, 0, -0.0833333), (4, 1, 0.0), (4, 2, 0.0833333), (2, 0, 0.0833333), (2, 1, 0.0), (2, 2, -0.0833333)],
)
def test_reward_of_the_chosen_device(version: int, device: int, reward: float) -> None:
    """Starts one upload before the state of the worked example; the engine delivers it. Its sender is the only idle
    device, so the recorded reward is the sender's."""
    seconds = [10.0, 20.0, 30.0]
    method = GitFL(GitFLParameters())
    world = World(
        method,
        fleet([t if d == device else 99.0 for d, t in enumerate(seconds)]),
        lambda job: job.weights,
        initial=vector(0),
        slots=3,
        limits=Limits(seconds=seconds[device]),
    )
    world.engine.start()
    branch = next(flight.slot for flight in world.engine.flights.values() if flight.device == device)
    others = [v for v in (4, 2, 3) if v != version]
    method.versions = [version - 1 if slot == branch else others.pop() for slot in range(3)]
    method.uploads[:], method.seconds[:], method.selected[:] = 1, seconds, (1, 4, 9)
    while world.engine.step():
        pass
    note = world.notes("select")[-1]
    assert (note["slot"], note["device"]) == (branch, device)
    assert note["reward"] == pytest.approx(reward + (1.0, 0.5, 1 / 3)[device], abs=1e-6)
