"""WKAFL: the iterations of its specification, both stages and the fallbacks."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.execution.base import TrainJob
from cabafl.learning.task import TrainingResult
from cabafl.methods.wkafl import WKAFL, WKAFLParameters
from cabafl.recording.events import Uploaded
from tests.scripted import World, fleet, vector

FIRST = [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.2)]
SECOND = [(2.0, 1.0), (1.0, 1.0), (0.0, -3.0)]


def gradients_in_turn(gradients: dict[tuple[int, int], tuple[float, float]]) -> Any:
    """A trainer with learning rate 1: the n-th job of a device steps along its gradient (default: zero). The loss is
    1, and 0.25 in the third job of a device."""
    counts: dict[int, int] = {}

    def train(job: TrainJob) -> TrainingResult:
        counts[job.device] = n = counts.get(job.device, 0) + 1
        loss = (0.25 if n == 3 else 1.0) if job.objective.report_loss else None
        return TrainingResult(job.weights - vector(*gradients.get((job.device, n), (0.0, 0.0))), loss)

    return train


def wkafl_example(**options: Any) -> World:
    """Five slots. Two steps with zero gradients age the jobs; the third merges gradients of staleness 1 (device 2), 2
    (device 5) and 3 (device 3), the fourth those of staleness 1, 1 (devices 0 and 1) and 2 (device 6)."""
    first = {(2, 2): FIRST[0], (5, 1): FIRST[1], (3, 1): FIRST[2]}
    second = {(0, 3): SECOND[0], (1, 3): SECOND[1], (6, 1): SECOND[2]}
    return World(
        WKAFL(WKAFLParameters(**{"buffer": 3, "server_lr": 0.1, "beta": 2.0, **options})),
        fleet([1.0, 1.0, 1.0, 5.0, 2.0, 3.5, 5.0, 99.0]),
        gradients_in_turn(first | second),
        initial=vector(0, 0),
        slots=5,
        limits=Limits(seconds=7.0),
        learning_rate=1.0,
        picks=[0, 1, 2, 3, 4, 0, 1, 5, 2, 6, 7, 0, 1, 4],
    ).run()


def test_first_and_second_iteration() -> None:
    world = wkafl_example()
    assert [event.time for event in world.publications()] == [1.0, 2.0, 5.0, 7.0]
    uploads = [e for e in world.events if isinstance(e, Uploaded)]
    assert [(e.device, e.staleness + 1) for e in uploads[6:12]] == [(2, 1), (5, 2), (3, 3), (0, 1), (1, 1), (6, 2)]
    np.testing.assert_allclose(world.published[:2], 0.0)
    np.testing.assert_allclose(world.published[2], (-0.0374850878, -0.0615248132), rtol=1e-6)
    np.testing.assert_allclose(world.published[3], (-0.1990867672, -0.1666871955), rtol=1e-6)
    first, second = (event.facts for event in world.publications()[2:])
    np.testing.assert_allclose(first["age"], (0.4391550627, 0.3231122381, 0.2377326992), rtol=1e-6)
    np.testing.assert_allclose(first["cosines"], (0.4774719175, 0.8786470099, -0.2958828797), rtol=1e-6)
    np.testing.assert_allclose(first["kept"], (0.3785993866, 0.6214006134, 0.0), rtol=1e-6)
    np.testing.assert_allclose(second["age"], (0.3655292893, 0.3655292893, 0.2689414214), rtol=1e-6)
    np.testing.assert_allclose(second["cosines"], (0.8811646431, 0.6902442040, 0.0248938466), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(second["kept"], (0.5943170235, 0.4056829765, 0.0), rtol=1e-6)
    method = world.engine.method
    assert isinstance(method, WKAFL)
    assert method.last is not None
    np.testing.assert_allclose(method.last, (1.6321769622, 1.0621400613), rtol=1e-6)
    np.testing.assert_allclose(world.published[2] / -0.0990099010, (0.3785993866, 0.6214006134), rtol=1e-6)  # eta_1, G
    np.testing.assert_allclose([model for _, _, model in world.sent[:11]], 0.0)
    np.testing.assert_allclose([m for t, _, m in world.sent if t == 5.0], [world.published[2]] * 3)
    assert world.dispatches[5:11] == [(1, 0, 0), (1, 1, 0), (1, 5, 0), (2, 2, 0), (2, 6, 0), (2, 7, 0)]


@pytest.mark.parametrize("rule", [{"stage_two_start": 4}, {"stage_rule": "loss", "stage_two_loss": 0.5}])
def test_stage_two_clips_relative_to_the_estimate(rule: dict[str, Any]) -> None:
    """Started by the iteration number, or by the training loss: on average 0.5 in the fourth step, more before."""
    world = wkafl_example(relative_clip=0.5, **rule)
    np.testing.assert_allclose(world.published[2], (-0.0374850878, -0.0615248132), rtol=1e-6)
    np.testing.assert_allclose(world.published[3], (-0.0830097017, -0.0932493773), rtol=1e-6)
    assert {job.objective.report_loss for job in world.executor.trained} == {"stage_rule" in rule}
    method = world.engine.method
    assert isinstance(method, WKAFL)
    assert method.last is not None
    np.testing.assert_allclose(method.last, (0.4597986006, 0.3204180973), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "expected", "tolerance"),
    [
        ({"agreement_uses_staleness": False}, (-0.0306458432, -0.0683640578), 0.0),
        ({"beta": 50.0}, (-2.6e-10, -0.0990099007), 1e-11),
    ],
)
def test_variants(options: dict[str, Any], expected: tuple[float, float], tolerance: float) -> None:
    world = wkafl_example(**options)
    np.testing.assert_allclose(world.published[2], expected, rtol=1e-6, atol=tolerance)
    if "beta" not in options:
        np.testing.assert_allclose(world.publications()[2].facts["kept"], (0.3095230161, 0.6904769839, 0), rtol=1e-6)


@pytest.mark.parametrize(
    ("gradients", "options", "expected"),
    [
        ([(1, 0), (-1, 0)], {}, (0, 0)),
        ([(1, 0), (0, 1)], {"sim_min": 0.8}, (-0.0495049505, -0.0495049505)),
        ([(3, 4), (0, 1)], {"clip": 1.0}, (-0.0297029703, -0.0891089109)),
    ],
)
def test_fallbacks(
    gradients: list[tuple[float, float]], options: dict[str, Any], expected: tuple[float, float]
) -> None:
    world = World(
        WKAFL(WKAFLParameters(**{"buffer": 2, "server_lr": 0.1, "beta": 2.0, **options})),
        fleet([1.0, 1.0]),
        gradients_in_turn({(0, 1): gradients[0], (1, 1): gradients[1]}),
        initial=vector(0, 0),
        slots=2,
        limits=Limits(seconds=1.0),
        learning_rate=1.0,
    ).run()
    np.testing.assert_allclose(world.published[0], expected, rtol=1e-6)


def test_through_the_engine() -> None:
    """Pseudo-gradients of real uploads, staleness from the engine's versions, one download per upload."""
    world = World(
        WKAFL(WKAFLParameters(buffer=1, server_lr=0.01)),
        fleet([1.0, 1.0]),
        lambda job: job.weights - vector(0.02, 0.0),
        initial=vector(0, 0),
        slots=1,
        limits=Limits(seconds=1.0),
        learning_rate=0.01,
    ).run()
    np.testing.assert_allclose(world.published[0], (-0.02 / 1.01, 0.0), rtol=1e-5)
    assert world.publications()[0].facts["kept"] == [1.0]
    longer = World(
        WKAFL(WKAFLParameters()),
        fleet([1.0, 1.5, 2.5, 4.0, 1.1, 0.7]),
        lambda job: job.weights - vector(0.02, 0.01),
        initial=vector(0, 0),
        slots=6,
        limits=Limits(seconds=30.0),
    ).run()
    ledger = longer.engine.ledger
    assert ledger.downloads - 6 == 3 * longer.engine.version
    assert len(longer.engine.flights) + ledger.uploads == ledger.downloads


@pytest.mark.parametrize(("slots", "size"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (10, 5), (18, 9), (50, 25)])
def test_the_buffer_is_half_of_the_slots(slots: int, size: int) -> None:
    world = World(
        WKAFL(WKAFLParameters()),
        fleet([1.0 + 0.01 * device for device in range(2 * slots)]),
        lambda job: job.weights + 1,
        initial=vector(0, 0),
        slots=slots,
        limits=Limits(seconds=3.0),
    ).run()
    assert {len(event.facts["devices"]) for event in world.publications()} == {size}
