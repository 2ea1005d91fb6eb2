"""FedAT: the worked numbers, the profile, lost devices, slots."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.execution.base import TrainJob
from cabafl.fleet import Absence, Faults
from cabafl.methods.base import Weights
from cabafl.methods.fedat import PROFILE, FedAT, FedATParameters
from tests.scripted import World, fleet, timetable, vector

MODELS = {2: (1, 0), 4: (2, 0), 3: (0, 1), 5: (3, 1)}  # by job; jobs 0 and 1 are the profile


def train(job: TrainJob) -> Weights:
    return vector(*MODELS[job.number]) if job.number in MODELS else job.weights


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (0, [(0, 0), (0, 0), (0.666667, 0.666667), (0.75, 1)]),
        (1, [(0.333333, 0), (0.5, 0), (0.8, 0.6), (1, 1)]),
    ],
)
def test_a_tier_weighs_as_much_as_its_mirror_is_active(start: Any, expected: list[tuple[float, float]]) -> None:
    """After the profile, at 2.5 s, tier 1 ends rounds at 3.5, 4.5 and 5.5 s, tier 2 at 5.2 s."""
    made = World(
        FedAT(FedATParameters(tiers=2, count_start=start)),
        timetable({0: [1.0] * 6, 1: [2.5, 2.7, 2.7]}),
        train,
        initial=vector(0, 0),
        slots=2,
        limits=Limits(seconds=5.6),
    ).run()
    assert [event.time for event in made.publications()] == pytest.approx([2.5, 3.5, 4.5, 5.2, 5.5])
    assert [event.facts.get("tier") for event in made.publications()] == [None, 1, 1, 2, 1]
    np.testing.assert_allclose(made.published[1:], expected, atol=1e-6)
    assert {job.objective.prox for job in made.executor.trained[:2]} == {0.0}
    assert {job.objective.prox for job in made.executor.trained[2:]} == {0.4}


def test_the_profile_is_a_round_over_all_devices_and_cuts_them_by_duration() -> None:
    """Seven devices, three at a time; devices 2 and 5 are equally fast, the lower number first."""
    seconds = [7.0, 1.0, 3.0, 6.0, 2.0, 3.0, 5.0]
    made = World(
        FedAT(FedATParameters(tiers=3)),
        fleet(seconds, [1, 2, 3, 4, 5, 6, 7]),
        lambda job: job.weights + job.device,
        initial=vector(0),
        slots=3,
        limits=Limits(seconds=14.0),
    ).run()
    profile = [device for _, device, slot in made.dispatches if slot == PROFILE]
    assert profile == list(range(7))
    assert made.published[0] == pytest.approx(sum(k * n for k, n in enumerate(range(1, 8))) / 28)
    method = made.engine.method
    assert isinstance(method, FedAT)
    assert method.tier == {1: 1, 4: 1, 2: 1, 5: 2, 6: 2, 3: 3, 0: 3}
    assert made.notes("tiers") == [{"sizes": [3, 2, 2]}]
    for _, device, slot in made.dispatches[7:]:
        assert method.tier[device] == slot


def test_a_device_that_did_not_answer_belongs_to_the_slowest_tier() -> None:
    made = World(
        FedAT(FedATParameters(tiers=2)),
        fleet([1.0, 2.0, 1.5]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=30.0),
        faults=Faults(trace={2: [Absence(0.5, 4.0)]}),
    ).run()
    method = made.engine.method
    assert isinstance(method, FedAT)
    assert method.tier == {0: 1, 1: 2}
    assert {slot for _, device, slot in made.dispatches if device == 2 and slot != PROFILE} == {2}


def test_a_profile_that_nobody_answers_begins_again() -> None:
    made = World(
        FedAT(FedATParameters()),
        fleet([2.0, 2.0]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=10.0),
        faults=Faults(trace={0: [Absence(0.5, 3.0)], 1: [Absence(0.6, 3.5)]}),
    ).run()
    assert [(time, device) for time, device, slot in made.dispatches if slot == PROFILE] == [(0, 0), (0, 1), (3, 0)]
    assert made.engine.version > 2


def test_a_round_that_nobody_survives_changes_nothing() -> None:
    made = World(
        FedAT(FedATParameters(tiers=1)),
        fleet([2.0]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=1,
        limits=Limits(seconds=6.5),
        faults=Faults(trace={0: [Absence(3.0, 4.0)]}),
    ).run()
    assert [event.time for event in made.publications()] == [2.0, 6.0]
    assert made.engine.method.counts == [2]  # type: ignore[attr-defined]


@pytest.mark.parametrize("slots", range(1, 12))
def test_tiers_share_the_slots(slots: int) -> None:
    method = FedAT(FedATParameters())
    method.check(slots)
    made = World(
        method,
        fleet(np.linspace(1, 4, 20).tolist()),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=slots,
        limits=Limits(seconds=200.0),
    ).run()
    assert method.last * method.size <= slots
    assert len(made.engine.flights) <= method.last * method.size
    assert all(method.running[tier] for tier in range(1, method.last + 1)), "every tier trains"
    with pytest.raises(ValueError, match=rf"method.tier_devices = 12: 5 tiers share {slots} slots; accepted: 1 to "):
        FedAT(FedATParameters(tier_devices=12)).check(slots)


def test_there_is_no_tier_without_devices() -> None:
    """Three devices and ten slots: an empty tier would hold on to the model of the profile, with the weight of the
    busiest one."""
    made = World(
        FedAT(FedATParameters()),
        fleet([1.0, 2.0, 3.0]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=10,
        limits=Limits(seconds=60.0),
    ).run()
    assert made.notes("tiers") == [{"sizes": [1, 1, 1]}]
    assert made.engine.model > 10, "the model gets on"
    few = World(
        FedAT(FedATParameters()),
        fleet([1.0] * 10),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=10,
        limits=Limits(seconds=20.0),
        faults=Faults(trace={device: [Absence(0.5, 2.0)] for device in range(2, 10)}),
    ).run()
    assert few.notes("tiers") == [{"sizes": [1, 1]}]
    assert len({device for _, device, _ in few.dispatches[10:]}) == 10
