"""Periodic aggregation with scheduling: the worked numbers, ages, lost devices, slots."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.execution.base import TrainJob
from cabafl.fleet import Absence, Faults
from cabafl.methods.base import Needs, Weights
from cabafl.methods.periodic import Periodic, PeriodicParameters
from tests.scripted import World, fleet, vector

A, B, C, D = range(4)
LABELS = [(8, 0), (0, 6), (7, 1), (2, 3)]


def train(job: TrainJob) -> Weights:
    """Uploads of the third tick: (1, 0) of device b, (0, 1) of device c; before it the model stays as it is."""
    if job.device == C:
        return vector(0, 1)
    return vector(1, 0) if job.number > 6 else job.weights


def world(age: Any = "equal", end: float = 30.5, **more: Any) -> World:
    """The job of device c takes two ticks longer than the others'."""
    return World(
        Periodic(PeriodicParameters(fraction=0.5, age=age, **more.pop("options", {}))),
        fleet([5.0, 5.0, 25.0, 5.0], [8, 6, 8, 5]),
        more.pop("train", train),
        **{"initial": vector(3, 3), "slots": 4, "limits": Limits(seconds=end), "features": LABELS, **more},
    ).run()


@pytest.mark.parametrize(
    ("age", "expected"),
    [("equal", (0.428571, 0.571429)), ("fresh", (0.511623, 0.488377)), ("old", (0.349358, 0.650642))],
)
def test_the_most_even_pair_uploads_and_ages_weigh(age: Any, expected: tuple[float, float]) -> None:
    made = world(age)
    facts = [event.facts for event in made.publications()]
    assert [fact["devices"] for fact in facts] == [[A, B], [A, B], [B, C]]
    assert [fact["ages"] for fact in facts] == [[0, 0], [0, 0], [0, 2]]
    assert [event.time for event in made.publications()] == [10.0, 20.0, 30.0]
    np.testing.assert_allclose(made.published[-1], expected, atol=1e-6)
    assert sorted((time, device) for time, device, _ in made.losses) == [(10.0, D), (20.0, D), (30.0, A), (30.0, D)]
    ledger = made.engine.ledger
    assert (ledger.uploads, ledger.losses["cancelled"]) == (6, 4)
    assert sorted(device for time, device, _ in made.dispatches if time == 30.0) == [A, B, C, D], "all that were ready"
    assert {device for time, device, _ in made.dispatches if time == 10.0} == {A, B, D}


def test_unevenness_of_all_pairs() -> None:
    method = Periodic(PeriodicParameters())
    method.labels = np.array(LABELS, dtype=np.float64)
    devices = {device: device for device in range(4)}
    pairs = [(A, B), (A, C), (A, D), (B, C), (B, D), (C, D)]
    found = [method._unevenness([*pair], devices) for pair in pairs]
    assert found == pytest.approx([0.5, 24.5, 6.125, 0.0, 6.125, 3.125])


def test_few_trials_are_uniform_subsets() -> None:
    """With one trial the subset is random; over many ticks all pairs occur."""
    made = world(end=2000.5, options={"trials": 1}, train=lambda job: job.weights, **{"limits": Limits(seconds=2000.5)})
    pairs = {tuple(event.facts["devices"]) for event in made.publications()}
    assert len(pairs) == 6


def test_a_tick_without_ready_devices_passes_and_uploads_may_take_longer_than_a_period() -> None:
    made = World(
        Periodic(PeriodicParameters(period=2.0)),
        fleet([5.0, 5.5]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=7.0),
        features=[(1, 0), (0, 1)],
    ).run()
    assert [event.time for event in made.publications()] == [6.0]
    assert made.publications()[0].facts["ages"] == [2]
    slow = fleet([5.0])
    object.__setattr__(slow, "link_seconds", np.array([6.0]))
    slow.__post_init__()
    made = World(
        Periodic(PeriodicParameters(period=2.0)),
        slow,
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=1,
        limits=Limits(seconds=25.0),
        features=[(1, 0)],
    ).run()
    assert [event.time for event in made.publications()] == [11.0, 23.0], "ready after 8 s, fetched, 3 s upload"
    assert [time for time, _, _ in made.dispatches] == [0.0, 11.0, 23.0]


def test_ages_are_those_of_the_tick_at_which_devices_were_asked() -> None:
    """Both are asked at the tick of 9 s. The upload of one takes 1 s, that of the other 5 s, in which a tick passes."""
    links = fleet([5.0, 3.0])
    object.__setattr__(links, "link_seconds", np.array([2.0, 10.0]))
    links.__post_init__()
    made = World(
        Periodic(PeriodicParameters(period=3.0, fraction=1.0, age="old", gamma=1.0)),
        links,
        lambda job: vector(1 - job.device, job.device),
        initial=vector(0, 0),
        slots=2,
        limits=Limits(seconds=14.5),
        features=[(1, 0), (0, 1)],
        faults=Faults(trace={0: [Absence(0.5, 1.0)]}),
    ).run()
    assert [(event.time, event.facts["ages"]) for event in made.publications()] == [(14.0, [1, 2])]
    np.testing.assert_allclose(made.published[0], np.array([1, np.e]) / (1 + np.e), rtol=1e-6)


def test_a_lost_device_gets_the_model_at_the_next_tick() -> None:
    gone = Faults(trace={A: [Absence(3.0, 12.0)]})
    made = world(faults=gone, end=20.5)
    assert [time for time, device, _ in made.dispatches if device == A] == [0.0, 20.0]
    held = world(faults=Faults(trace={B: [Absence(7.0, 12.0)]}), end=20.5)
    assert held.losses[0] == (7.0, B, "left")
    assert held.publications()[0].facts["devices"] == [A, D]
    nobody = world(faults=Faults(seed=1, loss=1.0), end=100.0)
    assert len(nobody.dispatches) > 20, "slots are filled although nobody is ready"


def test_with_fewer_slots_than_devices_all_devices_get_their_turn() -> None:
    rows = np.eye(10)
    made = World(
        Periodic(PeriodicParameters()),
        fleet([3.0] * 10),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=4,
        limits=Limits(seconds=200.5),
        features=rows,
    ).run()
    assert {device for _, device, _ in made.dispatches} == set(range(10))
    assert {len(event.facts["devices"]) for event in made.publications()} == {2}


def test_great_ages_do_not_overflow() -> None:
    method = Periodic(PeriodicParameters(age="old", gamma=0.001))
    assert method.factors([0, 100_000]) == [0.0, 1.0]
    assert Periodic(PeriodicParameters(age="fresh", gamma=0.001)).factors([3, 100_000]) == [1.0, 0.0]


def test_it_needs_label_counts() -> None:
    assert Periodic(PeriodicParameters()).needs() == Needs(features="labels")


def test_devices_with_unknown_labels_are_not_preferred() -> None:
    """One upload per tick. Device 1 has not told its labels, so it counts as an average one, not as one that
    is perfectly even."""
    made = World(
        Periodic(PeriodicParameters(fraction=0.1)),
        fleet([3.0] * 4),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=4,
        limits=Limits(seconds=100.5),
        features=[(4, 0), (0, 0), (1, 1), (4, 2)],
    ).run()
    method = made.engine.method
    assert isinstance(method, Periodic)
    assert method.labels.tolist() == [[4, 0], [3, 1], [1, 1], [4, 2]]
    assert {tuple(event.facts["devices"]) for event in made.publications()} == {(2,)}


def test_uploads_per_tick_are_a_share_of_the_devices_with_samples() -> None:
    made = World(
        Periodic(PeriodicParameters(fraction=0.5)),
        fleet([3.0] * 10, [5] * 4 + [0] * 6),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=4,
        limits=Limits(seconds=50.5),
        features=np.eye(10),
    ).run()
    assert {len(event.facts["devices"]) for event in made.publications()} == {2}
