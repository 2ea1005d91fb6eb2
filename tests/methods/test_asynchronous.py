"""FedAsync, FedBuff, CA2FL and GitFL through the real engine, with the numbers of their specifications."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.execution.base import TrainJob
from cabafl.methods.base import Method, Weights
from cabafl.methods.ca2fl import CA2FL, CA2FLParameters
from cabafl.methods.fedasync import FedAsync, FedAsyncParameters
from cabafl.methods.fedbuff import FedBuff, FedBuffParameters
from cabafl.methods.gitfl import GitFL, GitFLParameters
from cabafl.recording.events import Evaluated
from tests.scripted import World, fleet, vector


@pytest.mark.parametrize(
    ("parameters", "alphas", "models"),
    [
        ({"function": "constant"}, [0.6, 0.6, 0.6], [(0.6, 1.2), (-0.36, 2.88), (1.056, 1.152)]),
        (
            {"function": "polynomial", "a": 0.5},
            [0.424264069, 0.346410162, 0.346410162],
            [(0.4242640687, 0.8485281374), (-0.0691154774, 1.9402300143), (0.6476471493, 1.2681146217)],
        ),
        (
            {"function": "polynomial", "a": 0.5, "staleness_offset": 0},
            [0.6, 0.424264069, 0.424264069],
            [(0.6, 1.2), (-0.0788225099, 2.3879393924), (0.8031471863, 1.3748225099)],
        ),
        (
            {"function": "hinge", "a": 10.0, "b": 1.0},
            [0.6, 0.054545455, 0.054545455],
            [(0.6, 1.2), (0.5127272727, 1.3527272727), (0.5938512397, 1.2789421488)],
        ),
    ],
)
def test_fedasync_trace(parameters: dict[str, Any], alphas: list[float], models: list[tuple[float, float]]) -> None:
    answers = {0: vector(1, 2), 1: vector(-1, 4), 2: vector(2, 0)}
    world = World(
        FedAsync(FedAsyncParameters(**parameters)),
        fleet([1.0, 3.0, 2.0]),
        lambda job: answers[job.device],
        initial=vector(0, 0),
        slots=2,
        limits=Limits(seconds=3.0),
        picks=[0, 1],
    ).run()
    assert world.dispatches[:4] == [(0.0, 0, 0), (0.0, 1, 0), (1.0, 2, 0), (3.0, 0, 0)]
    trained = [vector(0, 0), vector(0, 0), *(vector(*models[i]) for i in (0, 1))]
    np.testing.assert_allclose([model for _, _, model in world.sent[:4]], trained, rtol=1e-6)
    offset = parameters.get("staleness_offset", 1)
    facts = [event.facts for event in world.publications()]
    assert [fact["staleness"] for fact in facts] == [offset, 1 + offset, 1 + offset]
    assert [fact["weights"][1] for fact in facts] == pytest.approx(alphas, rel=1e-6)
    np.testing.assert_allclose(world.published, models, rtol=1e-6)
    assert world.engine.ledger.downloads == 2 + 3
    assert world.engine.ledger.uploads == 3
    assert all(job.objective.prox == 0.01 for job in world.executor.trained)


@pytest.mark.parametrize(
    ("parameters", "staleness", "factor"),
    [({"function": "polynomial"}, d, f) for d, f in enumerate((1, 0.7071067812, 0.5773502692, 0.5, 0.4472135955))]
    + [({"function": "hinge", "a": 10.0, "b": 4.0}, d, f) for d, f in ((0, 1), (4, 1), (5, 1 / 11), (6, 1 / 21))]
    + [({"function": "hinge", "a": 10.0, "b": 4.0}, 10, 1 / 61)],
)
def test_fedasync_staleness_functions(parameters: dict[str, Any], staleness: int, factor: float) -> None:
    """While device 1 is under way, device 0 makes ``staleness`` new versions."""
    world = World(
        FedAsync(FedAsyncParameters(alpha=0.6, staleness_offset=0, **parameters)),
        fleet([1.0, staleness + 0.5]),
        lambda job: job.weights,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=staleness + 0.5),
        picks=[0, 1],
    ).run()
    last = world.publications()[-1].facts
    assert last["staleness"] == staleness
    assert last["weights"][1] == pytest.approx(0.6 * factor, rel=1e-6)


def test_fedasync_rejects_an_alpha_outside_of_its_range() -> None:
    for alpha in (0.0, 1.1):
        with pytest.raises(ValueError, match="alpha"):
            FedAsyncParameters(alpha=alpha)


def deltas(changes: list[tuple[float, float]]) -> Any:
    """A trainer whose n-th finished job changes the dispatched model by the n-th difference."""
    left = list(changes)

    def train(job: TrainJob) -> Weights:
        return job.weights + vector(*(left.pop(0) if left else (0.0, 0.0)))

    return train


@pytest.mark.parametrize(("staleness", "expected"), [("sqrt", (1.25, 0.85)), ("constant", (1.4, 0.9))])
def test_fedbuff_step(staleness: Any, expected: tuple[float, float]) -> None:
    """A fresh and a three-versions-old difference: three steps of nothing pass while device 1 is under way."""
    quick = [(0.0, 0.0)] * 6
    world = World(
        FedBuff(FedBuffParameters(buffer=2, staleness=staleness)),
        fleet([1.0, 6.9]),
        deltas([*quick, (0.6, 0.2), (0.2, -0.4)]),
        initial=vector(1, 1),
        slots=2,
        limits=Limits(seconds=7.0),
        picks=[0, 1, 0, 0, 0, 0, 0, 0, 1],
    ).run()
    assert [event.time for event in world.publications()] == [2.0, 4.0, 6.0, 7.0]
    last = world.publications()[-1].facts["factors"]
    assert last == pytest.approx([0.5, 1.0] if staleness == "sqrt" else [1.0, 1.0])
    np.testing.assert_allclose(world.published[-1], expected, rtol=1e-6)
    assert world.engine.version == 4  # the version grows at steps only
    assert [t for t, _, _ in world.dispatches] == [0, 0, 1, 2, 3, 4, 5, 6, 6.9, 7]  # a slot is refilled at once
    assert [model for _, _, model in world.sent[:-1]] == [(1.0, 1.0)] * 9
    np.testing.assert_allclose(world.sent[-1][2], expected, rtol=1e-6)


@pytest.mark.parametrize(("flush", "last"), [(False, 3.0), (True, 4.0)])
def test_fedbuff_partial_buffer_at_the_end(flush: bool, last: float) -> None:
    """Seven uploads that move by 1 each, buffers of two: three steps, and one upload is left."""
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


def test_ca2fl_two_steps() -> None:
    world = World(
        CA2FL(CA2FLParameters(buffer=2)),
        fleet([1.0, 2.0, 0.5]),
        deltas([(0.3, 0.0), (-0.1, 0.2), (0.1, 0.1), (0.2, -0.4)]),
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
    np.testing.assert_allclose(method.mean, [0.0666667, 0.0666667], atol=1e-7)  # models, and so changes, are float32
    while world.engine.step():
        pass
    # Finished in this order: device 0 at 1, device 1 and then device 0 at 2, device 2 at 2.5.
    np.testing.assert_allclose(world.published, [(1.1, 1.1), (1.1666667, 1.0166667)], rtol=1e-6)
    np.testing.assert_allclose(world.published[0] - vector(1, 1), [0.1, 0.1], atol=2e-7)
    np.testing.assert_allclose(world.published[1] - world.published[0], [0.0666667, -0.0833333], atol=2e-7)
    np.testing.assert_allclose(method.mean, [0.0666667, -0.0333333], atol=1e-7)
    assert sorted(method.cached) == [0, 1, 2]
    assert world.dispatches[:4] == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (2, 2, 0)]
    np.testing.assert_allclose([model for _, _, model in world.sent[:4]], [(1, 1)] * 3 + [(1.1, 1.1)], rtol=1e-6)


def test_ca2fl_same_device_twice_in_a_buffer() -> None:
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


TARGETS = {0: (1.0, 0.0), 1: (0.0, 1.0), 2: (2.0, 2.0)}  # the branches of the worked example, by device


def gitfl_example(seconds: list[float], until: float) -> World:
    """Three branches, each on a device of its own, which always pushes the branch of the example."""
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
def test_gitfl_merge_and_pull(seconds: list[float], last: int, until: float, pulled: tuple[float, float]) -> None:
    """Four, two and three pushes; the last of them makes the example's versions complete."""
    world = gitfl_example(seconds, until)
    np.testing.assert_allclose(world.published[-1], (1.1111111, 0.8888889), rtol=1e-6)
    sent = next(flight for flight in world.engine.flights.values() if flight.device == last)
    np.testing.assert_allclose(sent.weights, pulled, rtol=1e-6)
    assert sorted(world.publications()[-1].facts["weights"]) == pytest.approx([2 / 9, 3 / 9, 4 / 9])


@pytest.mark.parametrize(
    ("version", "device", "reward"),
    [(4, 0, -0.0833333), (4, 1, 0.0), (4, 2, 0.0833333), (2, 0, 0.0833333), (2, 1, 0.0), (2, 2, -0.0833333)],
)
def test_gitfl_reward_of_the_device_that_is_chosen(version: int, device: int, reward: float) -> None:
    """From the state of the worked example but for one upload, which the engine then delivers: the only idle device is
    the one that sent it, and the recorded reward is its own."""
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


@pytest.mark.parametrize(
    "method",
    [
        FedAsync(FedAsyncParameters()),
        FedBuff(FedBuffParameters()),
        CA2FL(CA2FLParameters()),
        GitFL(GitFLParameters()),
    ],
    ids=lambda method: method.name,
)
def test_two_transfers_per_upload(method: Method) -> None:
    world = World(
        method,
        fleet([1.0, 1.3, 1.7, 2.1, 0.9]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=30.0),
    ).run()
    assert world.engine.ledger.downloads == world.engine.ledger.uploads + 2
