"""FedProx, FedSA, SAFA and WKAFL through the real engine, with the numbers of their specifications."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.execution.base import TrainJob
from cabafl.fleet import Faults
from cabafl.fleet.faults import Absence
from cabafl.learning.task import Trained
from cabafl.methods.base import Method, Weights
from cabafl.methods.fedavg import FedAvg, FedAvgParameters
from cabafl.methods.fedprox import FedProx, FedProxParameters
from cabafl.methods.fedsa import FedSA, FedSAParameters
from cabafl.methods.safa import SAFA, SAFAParameters
from cabafl.methods.wkafl import WKAFL, WKAFLParameters
from cabafl.recording.events import Dispatched, Uploaded
from tests.methods.test_fedavg import quadratic_trainer
from tests.scripted import World, fleet, timetable, vector

# FedProx


@pytest.mark.parametrize(
    ("mu", "expected"), [(1.0, (-0.115, 0.805)), (0.01, (-0.11995, 0.83965)), (0.0, (-0.12, 0.84))]
)
def test_fedprox_round_of_quadratic_devices(mu: float, expected: tuple[float, float]) -> None:
    world = World(
        FedProx(FedProxParameters(mu=mu)),
        fleet([5.0, 9.0], [1, 3]),
        quadratic_trainer(2),  # type: ignore[arg-type]
        initial=vector(0, 0),
        slots=2,
        limits=Limits(seconds=9.0),
    ).run()
    np.testing.assert_allclose(world.published[0], expected, rtol=1e-6)
    assert world.engine.ledger.transfers == 4 + 2


@pytest.mark.parametrize(("mu", "factor"), [(0.0, 0.386), (0.01, 0.3856201), (1.0, 0.349)])
def test_fedprox_three_steps(mu: float, factor: float) -> None:
    """A round of one device takes its model exactly."""
    world = World(
        FedProx(FedProxParameters(mu=mu)),
        fleet([5.0]),
        quadratic_trainer(3),  # type: ignore[arg-type]
        initial=vector(0, 0),
        slots=1,
        limits=Limits(seconds=5.0),
    ).run()
    np.testing.assert_allclose(world.published[0], factor * np.array([1.0, 2.0]), rtol=1e-6)


def test_fedprox_without_its_term_is_fedavg() -> None:
    def run(method: FedAvg) -> World:
        return World(
            method,
            fleet([1.0, 2.0, 3.0, 1.5], [1, 2, 3, 4]),
            lambda job: job.weights + vector(job.device, job.number),
            initial=vector(0, 0),
            slots=2,
            limits=Limits(seconds=20.0),
        ).run()

    plain, proximal = run(FedAvg(FedAvgParameters())), run(FedProx(FedProxParameters(mu=0.0)))
    assert plain.dispatches == proximal.dispatches
    np.testing.assert_array_equal(plain.published, proximal.published)


def test_fedprox_partial_work_trains_fewer_epochs() -> None:
    world = World(
        FedProx(FedProxParameters(partial_fraction=0.5)),
        fleet([1.0] * 6),
        lambda job: job.weights,
        initial=vector(0),
        slots=6,
        limits=Limits(seconds=50.0),
        epochs=5,
    ).run()
    epochs = [job.objective.epochs for job in world.executor.trained]
    assert set(epochs) == {None, 1, 2, 3, 4}
    assert 0.4 < np.mean([e is not None for e in epochs]) < 0.6


def test_fedprox_proportional_sampling_draws_by_samples_with_replacement() -> None:
    world = World(
        FedProx(FedProxParameters(sampling="proportional", weighting="uniform")),
        fleet([1.0, 1.0], [1, 9]),
        lambda job: vector(float(job.device)),
        initial=vector(0),
        slots=4,
        limits=Limits(seconds=300.0),
    ).run()
    assert np.mean(world.published) == pytest.approx(0.9, abs=0.03)  # the mean counts a device as often as it was drawn


# FedSA


def fedsa(train: Any, seconds: list[float], sizes: list[int], slots: int, until: float, **options: Any) -> World:
    picks = options.pop("picks", [])
    initial = options.pop("initial", vector(0, 0))
    return World(
        FedSA(FedSAParameters(**options)),
        fleet(seconds, sizes),
        train,
        initial=initial,
        slots=slots,
        limits=Limits(seconds=until),
        picks=picks,
    ).run()


def test_fedsa_trace() -> None:
    answers = {0: vector(2, 0), 2: vector(0, 2), 3: vector(2, 2)}
    world = fedsa(
        lambda job: answers[job.device], [1.0, 5.0, 1.0, 1.0], [1] * 4, 2, 3.0, buffer=1, tau0=2, picks=[0, 1, 2, 3, 0]
    )
    assert world.dispatches[:6] == [(0.0, 0, 0), (0.0, 1, 0), (1.0, 2, 0), (2.0, 3, 0), (2.0, 1, 0), (3.0, 0, 0)]
    np.testing.assert_allclose(world.published, [(1, 0), (0.5, 1), (1.25, 1.5)], rtol=1e-6)
    rates = {job.device: 0.01 * job.objective.lr_scale for job in world.executor.trained}
    assert rates == pytest.approx({0: 0.005, 2: 0.0075, 3: 0.01})
    assert [model for _, _, model in world.sent[:5]] == [(0, 0), (0, 0), (1, 0), (0.5, 1), (0.5, 1)]  # W(0) to W(2)
    assert world.notes("restart") == [{"device": 1}]
    assert next(flight.started + flight.seconds for flight in world.engine.flights.values()) == 7.0
    ledger = world.engine.ledger
    assert (ledger.downloads - 1, ledger.uploads) == (5, 3)  # but for the refill at time 3: 8 transfers


@pytest.mark.parametrize(("picks", "rate"), [((1, 1, 2, 0), 0.01), ((0, 1, 2, 1), 0.005), ((1, 1, 0, 2), 0.01)])
def test_fedsa_learning_rate_follows_participation(picks: tuple[int, ...], rate: float) -> None:
    """The fourth dispatch makes the counts (1, 2, 1, 0)."""
    world = fedsa(lambda job: job.weights, [1.0] * 4, [1] * 4, 1, 4.0, buffer=1, picks=picks)
    fourth = world.executor.trained[3]
    assert [job.device for job in world.executor.trained[:4]] == list(picks)
    assert 0.01 * fourth.objective.lr_scale == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "betas", "expected"),
    [
        ({}, (0.1, 0.3), (0.4, 2.6)),
        ({"normaliser": "all"}, (0.05, 0.15), (-0.3, 3.3)),
        ({"mixing": "sequential"}, (0.1, 0.3), (0.34, 2.66)),
    ],
)
def test_fedsa_aggregation(options: dict[str, Any], betas: tuple[float, float], expected: tuple[float, float]) -> None:
    answers = {0: vector(1, 2), 1: vector(3, 0)}
    world = fedsa(
        lambda job: answers[job.device],
        [1.0, 2.0, 9.0, 9.0],
        [10, 30, 60, 100],
        3,
        2.0,
        buffer=2,
        initial=vector(-1, 4),
        picks=[0, 1, 2],
        **options,
    )
    np.testing.assert_allclose(world.published[0], expected, rtol=1e-6)
    assert world.publications()[0].facts["weights"] == pytest.approx(betas, rel=1e-6)


def test_fedsa_no_device_twice_in_a_round() -> None:
    """Device 1 loses its job at 2, when device 0 has uploaded: of the two idle ones only device 1 may begin again."""
    nan = vector(float("nan"))
    answers = answers_in_turn({(0, 1): vector(1), (1, 1): nan, (1, 2): vector(2), (2, 1): vector(3)})
    world = World(
        FedSA(FedSAParameters(buffer=2)),
        timetable({0: [1.0], 1: [2.0, 3.0], 2: [9.0]}),
        answers,
        initial=vector(0),
        slots=3,
        limits=Limits(seconds=4.9),
    ).run()
    assert world.dispatches[3:] == [(2.0, 1, 0)]
    assert world.published == []


def test_fedsa_round_nobody_is_left_to_fill_ends() -> None:
    """Two devices, two uploads per round: device 1 leaves for good after device 0 has uploaded."""
    world = World(
        FedSA(FedSAParameters(buffer=2)),
        fleet([1.0, 5.0]),
        lambda job: job.weights + 4,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=4.5),
        faults=Faults(trace={1: [Absence(2.0, 100.0)]}),
    ).run()
    assert [(event.time, event.facts["devices"]) for event in world.publications()] == [
        (2.0, [0]),
        (3.0, [0]),
        (4.0, [0]),
    ]


@pytest.mark.parametrize(
    ("method", "key"),
    [
        (FedSA(FedSAParameters(buffer=3)), "buffer"),
        (WKAFL(WKAFLParameters(buffer=3)), "buffer"),
        (SAFA(SAFAParameters(quota=3)), "quota"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_rounds_of_more_uploads_than_slots_are_refused(method: Method, key: str) -> None:
    method.check(3)
    with pytest.raises(ValueError, match=f"method.{key} = 3: only 2 devices train at a time; accepted: 1 to 2"):
        method.check(2)


def test_fedsa_bounds_and_timeouts() -> None:
    world = fedsa(
        lambda job: job.weights + 1,
        [1.0] * 9 + [50.0],
        [1] * 10,
        4,
        40.0,
        lr_scale_min=0.5,
        lr_scale_max=2.0,
        round_timeout=3.0,
    )
    assert {0.5, 2.0} >= {
        job.objective.lr_scale for job in world.executor.trained if job.objective.lr_scale in (0.5, 2.0)
    }
    assert min(job.objective.lr_scale for job in world.executor.trained) >= 0.5
    assert max(job.objective.lr_scale for job in world.executor.trained) <= 2.0
    patient = fedsa(lambda job: job.weights + 1, [1.0] * 9 + [50.0], [1] * 10, 4, 60.0, no_restart=True)
    assert patient.notes("restart") == []


# SAFA

SAFA_ANSWERS = {(0, 1): vector(4, 0), (1, 1): vector(0, 4), (0, 2): vector(2, 2), (1, 2): vector(1, 5)}


def answers_in_turn(answers: dict[tuple[int, int], Weights]) -> Any:
    """A trainer that gives the n-th answer of a device by (device, n)."""
    counts: dict[int, int] = {}

    def train(job: TrainJob) -> Weights:
        counts[job.device] = counts.get(job.device, 0) + 1
        return answers[job.device, counts[job.device]]

    return train


def safa_paper(third: dict[tuple[int, int], Weights], seconds: dict[int, list[float]], until: float) -> World:
    """A = 0, B = 1, C = 2."""
    return World(
        SAFA(SAFAParameters(population="all", quota=1, tau=2)),
        timetable(seconds, [1, 1, 2]),
        answers_in_turn({**SAFA_ANSWERS, **third}),
        initial=vector(0, 0),
        slots=1,
        limits=Limits(seconds=until),
    ).run()


def test_safa_paper_protocol_deprecated_device_refreshed() -> None:
    """Case ii: C never returns; in round 3 its entry is the global model it is restarted with."""
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


def test_safa_versions_of_the_paper_protocol() -> None:
    """A 1, B 1, C 0 after round 1, A 2, B 2, C 0 after round 2; C restarted with W(2) has version 2."""
    world = safa_paper({}, {0: [1.0] * 3, 1: [1.0] * 3, 2: [100.0, 100.0]}, 2.9)
    assert [e.version for e in world.events if isinstance(e, Dispatched)] == [0, 0, 0, 1, 1, 2, 2, 2]
    method = world.engine.method
    assert isinstance(method, SAFA)
    assert method.committed == {0: 2, 1: 2, 2: 2}
    early = safa_paper({}, {0: [1.0] * 3, 1: [1.0] * 3, 2: [100.0, 100.0]}, 1.9).engine.method
    assert isinstance(early, SAFA)
    assert early.committed == {0: 1, 1: 1}


def test_safa_paper_protocol_device_that_fails_every_round_becomes_deprecated() -> None:
    """As case ii, but C does not stay away: it sends garbage in rounds 1 and 2."""
    nan = vector(float("nan"), 0)
    third = {(0, 3): vector(0, 2), (1, 3): vector(9, 9), (2, 1): nan, (2, 2): nan, (2, 3): nan}
    world = safa_paper(third, {0: [1.0] * 4, 1: [1.0] * 4, 2: [0.5, 0.5, 0.5, 9.0]}, 3.0)
    np.testing.assert_allclose(world.published, [(1, 0), (1.25, 1.25), (0.875, 2.375)], rtol=1e-6)
    assert [event.facts["deprecated"] for event in world.publications()] == [[], [], [2]]


def test_safa_paper_protocol_a_device_that_returns_sends_nobody_else_off() -> None:
    """Devices 0 and 1 have uploaded when device 3, away from 0.5 to 2, is back: it alone begins in the round."""
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


def test_safa_slots_a_loss_at_the_closing_instant_is_not_replaced_by_an_old_model() -> None:
    """Device 1's garbage arrives together with the upload that fills the round; its slot waits for the new model."""
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


def test_safa_slots_no_device_twice_in_a_round() -> None:
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


def test_safa_paper_protocol_restarted_device_returns_first() -> None:
    """Case i: C, restarted at time 2, is quick this time and returns before A and B."""
    world = safa_paper({(2, 1): vector(3, 3)}, {0: [1.0, 1.0, 9.0], 1: [1.0, 1.0, 9.0], 2: [100.0, 0.5, 9.0]}, 2.5)
    np.testing.assert_allclose(world.published, [(1, 0), (1.25, 1.25), (2.25, 3.25)], rtol=1e-6)
    last = world.publications()[-1]
    assert (last.time, last.facts["picked"], last.facts["deprecated"]) == (2.5, [2], [2])
    assert [device for t, device, _ in world.dispatches if t < 2.5] == [0, 1, 2, 0, 1, 0, 1, 2]
    uploads = [e.time for e in world.events if isinstance(e, Uploaded)]
    assert uploads == [1.0, 1.0, 2.0, 2.0, 2.5]  # two, two and one per round


def test_safa_slots_aggregation_of_the_active_devices() -> None:
    """Active in round 2: device 0 just picked, device 1 never committed (its entry is the global model (2, 2)), device
    2 cached in round 1. Devices 3 and 4, which share round 1, send garbage and give their slots to 0 and 1."""
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
def test_safa_cache_of_models_after_one_epoch(population: Any) -> None:
    """Every device first trains one epoch; the first round then finds its model in the cache, not the initial one."""
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


def test_safa_slots_restarts_and_rounds() -> None:
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
    assert world.engine.ledger.losses["cancelled"] > 3  # the slow device is restarted again and again
    for event in world.publications():
        assert sum(event.facts["weights"]) == pytest.approx(1.0)
        assert len(event.facts["picked"]) <= 2


def test_safa_round_limit_without_uploads_goes_on() -> None:
    world = World(
        SAFA(SAFAParameters(round_timeout=2.0, tau=1)),
        fleet([5.0] * 4),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=9.0),
    ).run()
    assert [event.time for event in world.publications()] == [2.0, 4.0, 6.0, 8.0]


# WKAFL

FIRST = [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.2)]
SECOND = [(2.0, 1.0), (1.0, 1.0), (0.0, -3.0)]


def gradients_in_turn(gradients: dict[tuple[int, int], tuple[float, float]]) -> Any:
    """A trainer at rate 1: the n-th job of a device moves against its gradient, or not at all. Its loss is 1, in the
    third job of a device 0.25."""
    counts: dict[int, int] = {}

    def train(job: TrainJob) -> Trained:
        counts[job.device] = n = counts.get(job.device, 0) + 1
        loss = (0.25 if n == 3 else 1.0) if job.objective.report_loss else None
        return Trained(job.weights - vector(*gradients.get((job.device, n), (0.0, 0.0))), loss)

    return train


def wkafl_example(**options: Any) -> World:
    """Five slots. Two steps without movement age the jobs; the third merges gradients of staleness 1 (device 2), 2
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


def test_wkafl_first_and_second_iteration() -> None:
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
def test_wkafl_stage_two_clips_relative_to_the_estimate(rule: dict[str, Any]) -> None:
    """Begun by the number of the iteration, or by the training loss: 0.5 on average in the fourth step, more before."""
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
def test_wkafl_variants(options: dict[str, Any], expected: tuple[float, float], tolerance: float) -> None:
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
def test_wkafl_fallbacks(
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


def test_wkafl_through_the_engine() -> None:
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
