"""Pisces: the worked numbers, paced steps, guided selection."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.execution.base import TrainJob
from cabafl.fleet import Absence, Faults
from cabafl.learning.task import TrainingResult
from cabafl.methods.base import Needs
from cabafl.methods.pisces import Pisces, PiscesParameters
from tests.scripted import World, fleet, vector


def world(parameters: PiscesParameters, seconds: list[float], end: float, train: Any, **more: Any) -> World:
    return World(
        Pisces(parameters),
        fleet(seconds, more.pop("sizes", None)),
        train,
        **{"initial": vector(0, 0), "slots": len(seconds), "limits": Limits(seconds=end), **more},
    )


def test_a_step_with_a_fresh_and_a_stale_upload() -> None:
    """Device 0 uploads nothing new at 1, 6 and 11 s; its upload at 16 s and that of device 1 at 17 s wait together."""

    def train(job: TrainJob) -> TrainingResult:
        assert job.objective.report_square
        change = {1: vector(0.1, 0.4), 4: vector(0.2, 0.0)}.get(job.number, vector(0, 0))
        return TrainingResult(job.weights + change, square_loss=0.25 if job.device == 1 else 1.44)

    made = world(
        PiscesParameters(first_latency=5.0, lag_bound=1, explore=0.0, explore_min=0.0),
        [1.0, 17.0],
        20.5,
        train,
        sizes=[50, 150],
    ).run()
    if made.dispatches[0][1] == 1:
        pytest.fail("the numbers of the jobs below are those of device 0 first")
    assert [event.time for event in made.publications()] == [5.0, 10.0, 15.0, 20.0]
    np.testing.assert_allclose(made.published[-1], (0.0875, 0.15), rtol=1e-6)
    assert made.publications()[-1].facts["shares"] == pytest.approx([0.25, 0.375])
    method = made.engine.method
    assert isinstance(method, Pisces)
    assert method.score(1) == pytest.approx(37.5)
    method.lags[0] = [0, 2]
    assert method.score(0) == pytest.approx(42.426407, abs=1e-6)


def test_the_interval_follows_the_slowest_running_device() -> None:
    """60 s and 10 slots: 6 s, so at the tick after 10 s."""
    method = Pisces(PiscesParameters(first_latency=60.0))
    made = World(
        method,
        fleet([1.0, *[60.0] * 9, 1.0]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=10,
        limits=Limits(seconds=21.0),
    )
    made.engine.start()
    assert method.interval(made.engine) == 6.0
    method.seconds = dict.fromkeys(range(11), 30.0)
    assert method.interval(made.engine) == 3.0
    method.running = {}
    assert method.interval(made.engine) == 0.0


def test_steps_are_spaced() -> None:
    made = world(
        PiscesParameters(first_latency=24.0, lag_bound=2), [1.0, 100.0], 40.5, lambda job: job.weights + 1
    ).run()
    assert [event.time for event in made.publications()] == [15.0, 30.0], "12 s have passed at the tick of 15 s"
    assert 1 not in made.engine.idle


def test_a_device_whose_upload_waits_is_not_chosen() -> None:
    made = world(
        PiscesParameters(first_latency=24.0, lag_bound=2), [1.0, 100.0], 14.0, lambda job: job.weights + 1
    ).run()
    assert [device for _, device, _ in made.dispatches].count(0) == 1


def test_devices_never_tried_come_first_then_the_best() -> None:
    """Ten devices, two slots. Each is tried once; then the two with the largest losses train for ever."""
    made = world(
        PiscesParameters(explore=1.0, explore_min=0.0, explore_decay=1.0, tick=1.0, first_latency=0.1),
        [0.5] * 10,
        20.5,
        lambda job: TrainingResult(job.weights, square_loss=float(job.device)),
        slots=2,
    ).run()
    devices = [device for _, device, _ in made.dispatches]
    assert sorted(devices[:10]) == list(range(10))
    assert {frozenset(devices[place : place + 2]) for place in range(10, 40, 2)} == {frozenset({8, 9})}


def test_exploration_decays_to_its_lower_bound_and_ties_are_random() -> None:
    parameters = PiscesParameters(explore=0.9, explore_decay=0.5, explore_min=0.3, tick=1.0, first_latency=0.1)
    made = world(parameters, [0.5] * 30, 60.5, lambda job: TrainingResult(job.weights, square_loss=1.0), slots=3).run()
    method = made.engine.method
    assert isinstance(method, Pisces)
    assert method.explore == 0.3
    late = [device for time, device, _ in made.dispatches if time > 40]
    assert len(set(late)) > 10


def test_lost_devices_stay_untried_and_their_slots_are_filled_at_the_next_tick() -> None:
    made = world(
        PiscesParameters(tick=2.0),
        [1.0, 1.0],
        5.0,
        lambda job: job.weights + 1,
        slots=1,
        faults=Faults(trace={0: [Absence(0.5, 100.0)], 1: [Absence(0.5, 3.0)]}),
    ).run()
    assert [time for time, _, _ in made.dispatches] == [0.0, 4.0]
    assert 0 not in made.engine.method.lags  # type: ignore[attr-defined]


def test_it_needs_losses() -> None:
    assert Pisces(PiscesParameters()).needs() == Needs(training_loss=True)


def test_scores_by_the_mean_loss() -> None:
    made = world(
        PiscesParameters(utility="loss"),
        [1.0],
        1.5,
        lambda job: TrainingResult(job.weights, 0.5 if job.objective.report_loss else None),
        sizes=[40],
    ).run()
    method = made.engine.method
    assert isinstance(method, Pisces)
    assert method.score(0) == 20.0
    assert not made.executor.trained[0].objective.report_square


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
@pytest.mark.parametrize("utility", ["square", "loss"])
def test_a_device_without_a_usable_loss_comes_last(loss: float | None, utility: Any) -> None:
    """A score that is not a number would have no place in the order."""

    def train(job: TrainJob) -> TrainingResult:
        value = loss if job.device == 1 else 1.0 + job.device
        return TrainingResult(job.weights, value, value)

    made = world(
        PiscesParameters(explore=1.0, explore_min=0.0, explore_decay=1.0, tick=1.0, first_latency=0.1, utility=utility),
        [0.5] * 5,
        12.5,
        train,
        slots=2,
    ).run()
    assert {device for time, device, _ in made.dispatches if time < 4} == set(range(5))
    assert {device for time, device, _ in made.dispatches if time > 4} == {3, 4}
