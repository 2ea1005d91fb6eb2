"""SAFA: the worked examples of its specification, for both populations."""

import json
from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.fleet import Faults
from cabafl.fleet.faults import Absence
from cabafl.methods.base import Weights
from cabafl.methods.safa import SAFA, SAFAParameters
from cabafl.recording.events import Dispatched, Uploaded
from cabafl.state import Decoder, Encoder
from tests.methods.trainers import answers_in_turn
from tests.scripted import World, fleet, timetable, vector

SAFA_ANSWERS = {(0, 1): vector(4, 0), (1, 1): vector(0, 4), (0, 2): vector(2, 2), (1, 2): vector(1, 5)}


def safa_paper(third: dict[tuple[int, int], Weights], seconds: dict[int, list[float]], until: float) -> World:
    """The example of the specification: devices A = 0, B = 1, C = 2."""
    return World(
        SAFA(SAFAParameters(population="all", quota=1, tau=2)),
        timetable(seconds, [1, 1, 2]),
        answers_in_turn({**SAFA_ANSWERS, **third}),
        initial=vector(0, 0),
        slots=1,
        limits=Limits(seconds=until),
    ).run()


def test_paper_protocol_deprecated_device_refreshed() -> None:
    """Case ii: C never returns; in round 3 its cache entry is the global model it is restarted from."""
    third = {(0, 3): vector(0, 2), (1, 3): vector(9, 9)}
    world = safa_paper(third, {0: [1.0] * 4, 1: [1.0] * 4, 2: [100.0, 100.0]}, 3.0)
    np.testing.assert_allclose(world.published, [(1, 0), (1.25, 1.25), (0.875, 2.375)], rtol=1e-6)
    rounds = [event.facts for event in world.publications()]
    assert [(fact["picked"], fact["undrafted"]) for fact in rounds[:2]] == [([0], [1]), ([1], [0])]
    assert rounds[2]["deprecated"] == [2]
    dispatched = [device for t, device, _ in world.dispatches if t < 3.0]
    assert dispatched == [0, 1, 2, 0, 1, 0, 1, 2]  # downloads per round: 3, 2, 3
    assert [model for _, _, model in world.sent[:8]] == [(0, 0)] * 3 + [(1, 0)] * 2 + [(1.25, 1.25)] * 3
    assert world.engine.ledger.losses == {"cancelled": 1}


def test_versions_of_the_paper_protocol() -> None:
    """A 1, B 1, C 0 after round 1; A 2, B 2, C 0 after round 2; C, restarted from W(2), has version 2."""
    world = safa_paper({}, {0: [1.0] * 3, 1: [1.0] * 3, 2: [100.0, 100.0]}, 2.9)
    assert [e.version for e in world.events if isinstance(e, Dispatched)] == [0, 0, 0, 1, 1, 2, 2, 2]
    method = world.engine.method
    assert isinstance(method, SAFA)
    assert method.committed == {0: 2, 1: 2, 2: 2}
    early = safa_paper({}, {0: [1.0] * 3, 1: [1.0] * 3, 2: [100.0, 100.0]}, 1.9).engine.method
    assert isinstance(early, SAFA)
    assert early.committed == {0: 1, 1: 1}


def test_paper_protocol_device_that_fails_every_round_becomes_deprecated() -> None:
    """As case ii, but C answers: it uploads NaN in rounds 1 and 2."""
    nan = vector(float("nan"), 0)
    third = {(0, 3): vector(0, 2), (1, 3): vector(9, 9), (2, 1): nan, (2, 2): nan, (2, 3): nan}
    world = safa_paper(third, {0: [1.0] * 4, 1: [1.0] * 4, 2: [0.5, 0.5, 0.5, 9.0]}, 3.0)
    np.testing.assert_allclose(world.published, [(1, 0), (1.25, 1.25), (0.875, 2.375)], rtol=1e-6)
    assert [event.facts["deprecated"] for event in world.publications()] == [[], [], [2]]


def test_paper_protocol_only_the_returning_device_joins_a_round() -> None:
    """Device 3, away from 0.5 to 2, returns after the uploads of devices 0 and 1: it alone joins the round."""
    world = World(
        SAFA(SAFAParameters(population="all", quota=3)),
        fleet([1.0, 1.5, 9.0, 5.0]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=3,
        limits=Limits(seconds=4.0),
        faults=Faults(trace={0: [Absence(1.8, 2.2)], 3: [Absence(0.5, 2.0)]}),
    ).run()
    assert [(t, device) for t, device, _ in world.dispatches[4:]] == [(2.0, 3)]
    assert world.published == []


def test_slots_a_loss_at_the_closing_instant_waits_for_the_new_model() -> None:
    """The NaN upload of device 1 arrives together with the upload that completes the round."""
    world = World(
        SAFA(SAFAParameters(quota=1)),
        fleet([1.0, 1.0, 9.0, 9.0]),
        lambda job: vector(float("nan")) if job.device == 1 else job.weights + 1,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=1.0),
        picks=[0, 1, 2, 3],
    ).run()
    assert world.dispatches == [(0, 0, 0), (0, 1, 0), (1, 2, 0), (1, 3, 0)]
    assert [model for _, _, model in world.sent[2:]] == [tuple(world.published[0].tolist())] * 2


def test_slots_no_device_twice_in_a_round() -> None:
    nan = vector(float("nan"))
    world = World(
        SAFA(SAFAParameters(quota=2)),
        timetable({0: [1.0], 1: [2.0, 3.0], 2: [9.0]}),
        answers_in_turn({(0, 1): vector(1), (1, 1): nan, (1, 2): vector(2)}),
        initial=vector(0),
        slots=3,
        limits=Limits(seconds=4.9),
    ).run()
    assert [(t, device) for t, device, _ in world.dispatches[3:]] == [(2.0, 1)]


def test_paper_protocol_restarted_device_returns_first() -> None:
    """Case i: C, restarted at time 2, uploads before A and B."""
    world = safa_paper({(2, 1): vector(3, 3)}, {0: [1.0, 1.0, 9.0], 1: [1.0, 1.0, 9.0], 2: [100.0, 0.5, 9.0]}, 2.5)
    np.testing.assert_allclose(world.published, [(1, 0), (1.25, 1.25), (2.25, 3.25)], rtol=1e-6)
    last = world.publications()[-1]
    assert (last.time, last.facts["picked"], last.facts["deprecated"]) == (2.5, [2], [2])
    assert [device for t, device, _ in world.dispatches if t < 2.5] == [0, 1, 2, 0, 1, 0, 1, 2]
    uploads = [e.time for e in world.events if isinstance(e, Uploaded)]
    assert uploads == [1.0, 1.0, 2.0, 2.0, 2.5]  # two, two and one per round


def test_slots_aggregation_of_the_active_devices() -> None:
    """Active in round 2: device 0 just picked, device 1 never committed (its entry is the global model (2, 2)), device
    2 cached in round 1. Devices 3 and 4, dispatched in round 1, upload NaN, and devices 0 and 1 take their slots."""
    nan = vector(float("nan"), 0)
    world = World(
        SAFA(SAFAParameters(quota=1)),
        timetable({0: [1.0], 1: [9.0], 2: [1.0, 9.0], 3: [1.5], 4: [1.6], 5: [9.0]}, [10, 30, 60, 10, 30, 1]),
        answers_in_turn({(2, 1): vector(1, 5), (3, 1): nan, (4, 1): nan, (0, 1): vector(4, 0)}),
        initial=vector(3.5, -2.5),
        slots=3,
        limits=Limits(seconds=2.5),
        picks=[2, 3, 4, 2, 0, 1, 5],
    ).run()
    assert world.dispatches == [(0, 2, 0), (0, 3, 0), (0, 4, 0), (1, 2, 0), (1.5, 0, 0), (1.6, 1, 0), (2.5, 5, 0)]
    assert world.losses == [(1.5, 3, "rejected"), (1.6, 4, "rejected")]
    np.testing.assert_allclose(world.published, [(2, 2), (1.6, 3.6)], rtol=1e-6)
    assert world.publications()[1].facts["devices"] == [0, 1, 2]
    sent = [(3.5, -2.5)] * 3 + [(2, 2)] * 3 + [(1.6, 3.6)]
    np.testing.assert_allclose([model for _, _, model in world.sent], sent, rtol=1e-6)


@pytest.mark.parametrize("population", ["all", "slots"])
def test_cache_of_models_after_one_epoch(population: Any) -> None:
    """Every device first trains one epoch; the first round uses these models as cache entries."""
    world = World(
        SAFA(SAFAParameters(population=population, quota=1, cache_init="first_epoch", aggregate_over="all")),
        fleet([1.0, 2.0, 3.0]),
        lambda job: vector(10.0 * (job.device + 1)) if job.objective.epochs == 1 else vector(job.device + 1.0),
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=4.0),
        epochs=5,
        picks=[0, 1] if population == "slots" else [],
    ).run()
    prepared = [job.device for job in world.executor.trained if job.objective.epochs == 1]
    assert prepared == [0, 1, 2]
    begun = 0.6 if population == "all" else 0.8  # one epoch of five; two at a time: devices 0 and 1, then 2
    assert [t for t, device, _ in world.dispatches[3:5]] == pytest.approx([begun] * 2)
    np.testing.assert_allclose(world.published[0], [(1.0 + 20 + 30) / 3], rtol=1e-6)


def test_slots_restarts_and_rounds() -> None:
    world = World(
        SAFA(SAFAParameters(tau=2)),
        fleet([1.0, 1.2, 1.4, 1.1, 1.3, 40.0, *np.linspace(1.0, 1.5, 14).tolist()]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=4,
        limits=Limits(seconds=60.0),
        picks=[5, 0, 1, 2],
    ).run()
    assert world.engine.version > 20
    assert world.engine.ledger.losses["cancelled"] > 3  # the slow device is restarted repeatedly
    for event in world.publications():
        assert sum(event.facts["weights"]) == pytest.approx(1.0)
        assert len(event.facts["picked"]) <= 2


def test_a_round_without_uploads_ends_at_its_time_limit() -> None:
    world = World(
        SAFA(SAFAParameters(round_timeout=2.0, tau=1)),
        fleet([5.0] * 4),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=9.0),
    ).run()
    assert [event.time for event in world.publications()] == [2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize("population", ["all", "slots"])
def test_state_can_be_stored_in_the_middle_of_a_round(population: Any) -> None:
    world = World(
        SAFA(SAFAParameters(population=population, quota=3)),
        fleet([1.0, 2.0, 3.0, 4.0]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=3,
        limits=Limits(seconds=9.0),
        picks=[0, 1, 2] if population == "slots" else [],
    )
    world.engine.start()
    while world.engine.now < 1.0:
        world.engine.step()
    method, again = world.engine.method, SAFA(SAFAParameters(population=population))
    encoder = Encoder()
    tree = json.loads(json.dumps(encoder.encode({k: v for k, v in vars(method).items() if k != "parameters"})))
    vars(again).update(Decoder(encoder.arrays).decode(tree))
    assert isinstance(method, SAFA)
    assert type(again.population) is type(method.population)
    assert vars(again.population) == vars(method.population)
    assert (again.round.number, list(again.round.picked), again.in_flight) == (1, [0], method.in_flight)
