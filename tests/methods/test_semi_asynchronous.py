"""FedProx, FedSA, SAFA and WKAFL through the real engine, with the numbers of their specifications."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.execution.base import TrainJob
from cabafl.methods.base import Weights
from cabafl.methods.fedavg import FedAvg, FedAvgParameters
from cabafl.methods.fedprox import FedProx, FedProxParameters
from cabafl.methods.fedsa import FedSA, FedSAParameters
from cabafl.methods.safa import SAFA, SAFAParameters
from cabafl.methods.wkafl import WKAFL, WKAFLParameters
from tests.methods.test_fedavg import quadratic_trainer
from tests.scripted import World, fleet, vector

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
    run = quadratic_trainer(3)
    upload = run(TrainJob(0, 0, vector(0, 0), None, 1.0, mu))  # type: ignore[operator]
    np.testing.assert_allclose(upload, factor * np.array([1.0, 2.0]), rtol=1e-6)


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
    epochs = [job.epochs for job in world.executor.trained]
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
    rates = {job.device: 0.01 * job.lr_scale for job in world.executor.trained}
    assert rates == pytest.approx({0: 0.005, 2: 0.0075, 3: 0.01})
    assert world.notes("restart") == [{"device": 1}]
    assert next(flight.started + flight.seconds for flight in world.engine.flights.values()) == 7.0
    ledger = world.engine.ledger
    assert (ledger.downloads - 1, ledger.uploads) == (5, 3)  # but for the refill at time 3: 8 transfers


def test_fedsa_learning_rate_follows_participation() -> None:
    method = FedSA(FedSAParameters(buffer=1))
    world = World(method, fleet([1.0] * 4), lambda j: j.weights, initial=vector(0), slots=1, limits=Limits())
    method.prepare(world.engine)
    method.counts = [1, 2, 1, 0]
    rates = [0.01 * method.objective(world.engine, device).lr_scale for device in range(3)]
    assert rates == pytest.approx([0.01, 0.005, 0.01])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (0.4, 2.6)),
        ({"normaliser": "all"}, (-0.3, 3.3)),
        ({"mixing": "sequential"}, (0.34, 2.66)),
    ],
)
def test_fedsa_aggregation(options: dict[str, Any], expected: tuple[float, float]) -> None:
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
    np.testing.assert_allclose(world.published[0], expected, rtol=1e-5)


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
    assert {0.5, 2.0} >= {job.lr_scale for job in world.executor.trained if job.lr_scale in (0.5, 2.0)}
    assert min(job.lr_scale for job in world.executor.trained) >= 0.5
    assert max(job.lr_scale for job in world.executor.trained) <= 2.0
    patient = fedsa(lambda job: job.weights + 1, [1.0] * 9 + [50.0], [1] * 10, 4, 60.0, no_restart=True)
    assert patient.notes("restart") == []


# SAFA

SAFA_ANSWERS = {(0, 1): vector(4, 0), (1, 1): vector(0, 4), (0, 2): vector(2, 2), (1, 2): vector(1, 5)}


def safa_paper(third: dict[int, Weights], seconds: list[float], until: float) -> World:
    """A = 0, B = 1, C = 2; the n-th answer of a device by (device, n)."""
    counts = {0: 0, 1: 0, 2: 0}

    def train(job: TrainJob) -> Weights:
        counts[job.device] += 1
        return {**SAFA_ANSWERS, **{(d, 3 if d < 2 else 1): w for d, w in third.items()}}[job.device, counts[job.device]]

    return World(
        SAFA(SAFAParameters(population="all", quota=1, tau=2)),
        fleet(seconds, [1, 1, 2]),
        train,
        initial=vector(0, 0),
        slots=1,
        limits=Limits(seconds=until),
    ).run()


def test_safa_paper_protocol_deprecated_device_refreshed() -> None:
    """Case ii: C never returns; in round 3 its entry is the global model it is restarted with."""
    world = safa_paper({0: vector(0, 2), 1: vector(9, 9)}, [1.0, 1.0, 100.0], 3.0)
    np.testing.assert_allclose(world.published, [(1, 0), (1.25, 1.25), (0.875, 2.375)], rtol=1e-6)
    rounds = [event.facts for event in world.aggregations()]
    assert [(fact["picked"], fact["undrafted"]) for fact in rounds[:2]] == [([0], [1]), ([1], [0])]
    assert rounds[2]["deprecated"] == [2]
    dispatched = [device for t, device, _ in world.dispatches if t < 3.0]
    assert dispatched == [0, 1, 2, 0, 1, 0, 1, 2]  # downloads per round: 3, 2, 3
    assert world.engine.ledger.losses == {"cancelled": 1}


def test_safa_paper_protocol_restarted_device_returns_first() -> None:
    """Case i: restarted at time 2, C returns before the others; A and B are slower in their third job."""
    world = safa_paper({2: vector(3, 3)}, [1.0, 1.0, 2.0 + 0.5], 2.0)
    method = world.engine.method
    assert isinstance(method, SAFA)
    np.testing.assert_allclose(world.published, [(1, 0), (1.25, 1.25)], rtol=1e-6)
    # Round 3 has just begun: let only C answer.
    job = next(number for number, flight in method.flying.items() if flight.device == 2)
    from cabafl.methods.base import Upload

    flight = world.engine.flights.pop(job)
    world.engine.idle.add(2)
    method.on_upload(world.engine, Upload(flight, vector(3, 3), 2, 0.01, 1.0))
    method.on_timer(world.engine, "close 3")
    np.testing.assert_allclose(world.engine.model, (2.25, 3.25), rtol=1e-6)


def test_safa_slots_aggregation_of_the_active_devices() -> None:
    """Active: device 0 just picked, device 1 never committed (its entry is the global model), device 2 cached."""
    method = SAFA(SAFAParameters(quota=1))
    world = World(
        method,
        fleet([1.0, 9.0, 9.0], [10, 30, 60]),
        lambda job: vector(4, 0),
        initial=vector(2, 2),
        slots=3,
        limits=Limits(seconds=1.0),
    )
    world.engine.start()
    method.deprecated.remove(2)
    method.cache[2] = vector(1, 5)
    while world.engine.step():
        pass
    np.testing.assert_allclose(world.engine.model, (1.6, 3.6), rtol=1e-6)


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
    for event in world.aggregations():
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
    assert [event.t for event in world.aggregations()] == [2.0, 4.0, 6.0, 8.0]


# WKAFL

FIRST = [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.2)]
SECOND = [(2.0, 1.0), (1.0, 1.0), (0.0, -3.0)]


def wkafl(gradients: list[tuple[float, float]], staleness: list[int], **options: Any) -> WKAFL:
    """A method whose buffer is about to be merged; the merging itself is what the engine calls."""
    settings = {"buffer": len(gradients), "server_lr": 0.1, "beta": 2.0, **options}
    method = WKAFL(WKAFLParameters(**settings))
    world = World(
        method, fleet([1.0] * 9), lambda j: j.weights, initial=vector(0, 0), slots=3, limits=Limits(seconds=9.0)
    )
    world.engine.start()
    feed(method, world, gradients, staleness)
    return method


def feed(method: WKAFL, world: World, gradients: list[tuple[float, float]], staleness: list[int]) -> None:
    from cabafl.methods.base import Job, Upload

    method.world = world  # type: ignore[attr-defined]
    base = world.engine.version
    for number, (gradient, age) in enumerate(zip(gradients, staleness, strict=True)):
        start = method.model
        job = Job(-number, number, 0, base + 1 - age, start)
        upload = (start - 0.01 * np.array(gradient)).astype(np.float64)
        method.receive(world.engine, Upload(job, upload, 1, 0.01, 1.0))  # type: ignore[arg-type]


def test_wkafl_first_and_second_iteration() -> None:
    method = wkafl(FIRST, [1, 2, 3])
    np.testing.assert_allclose(method.model, (-0.0374850878, -0.0615248132), rtol=1e-5)
    assert method.last is not None
    np.testing.assert_allclose(method.last, (0.3785993866, 0.6214006134), rtol=1e-5)
    feed(method, method.world, SECOND, [1, 1, 2])  # type: ignore[attr-defined]
    np.testing.assert_allclose(method.model, (-0.1990867672, -0.1666871955), rtol=1e-5)


def test_wkafl_stage_two_clips_relative_to_the_estimate() -> None:
    method = wkafl(FIRST, [1, 2, 3], stage_two_start=2, relative_clip=0.5)
    feed(method, method.world, SECOND, [1, 1, 2])  # type: ignore[attr-defined]
    np.testing.assert_allclose(method.model, (-0.0830097017, -0.0932493773), rtol=1e-5)
    assert method.last is not None
    np.testing.assert_allclose(method.last, (0.4597986006, 0.3204180973), rtol=1e-5)


@pytest.mark.parametrize(
    ("gradients", "staleness", "options", "expected"),
    [
        (FIRST, [1, 2, 3], {"agreement_uses_staleness": False}, (-0.0306458432, -0.0683640578)),
        (FIRST, [1, 2, 3], {"beta": 50.0}, (-2.6e-10, -0.0990099007)),
        ([(1, 0), (-1, 0)], [1, 1], {}, (0, 0)),
        ([(1, 0), (0, 1)], [1, 1], {"sim_min": 0.8}, (-0.0495049505, -0.0495049505)),
        ([(3, 4), (0, 1)], [1, 1], {"clip": 1.0}, (-0.0297029703, -0.0891089109)),
    ],
)
def test_wkafl_variants_and_fallbacks(
    gradients: list[tuple[float, float]], staleness: list[int], options: dict[str, Any], expected: tuple[float, float]
) -> None:
    method = wkafl(gradients, staleness, **options)
    np.testing.assert_allclose(method.model, expected, rtol=1e-5, atol=1e-8)


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
    assert world.aggregations()[0].facts["kept"] == [1.0]
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
