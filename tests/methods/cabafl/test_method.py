"""CaBaFL on the real engine: the worked example of its specification, its variants and its handling of faults."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import Limits
from cabafl.execution.base import TrainJob
from cabafl.methods.base import Weights
from cabafl.methods.cabafl import CaBaFL, CaBaFLParameters
from cabafl.recording.events import Collection, Published, Uploaded
from tests.scripted import World, fleet, vector

FEATURES = [[4, 0], [0, 4], [2, 2], [3, 1]]


def example(limits: Limits | None = None, **parameters: Any) -> World:
    """Four devices, two slots, k = 2; slot 0 goes 0, 2, (aggregation) 0, and slot 1 goes 1, 3, (aggregation)."""
    settings = {"k": 2, "alpha": 0.5, "gamma": 0.3, "sigma": 1.0, **parameters}
    return World(
        CaBaFL(CaBaFLParameters(**settings)),
        fleet([1.0, 2.5, 1.0, 0.4], [4, 4, 4, 4]),
        lambda job: vector(job.number + 1, 10 * job.device),
        initial=vector(0, 0),
        slots=2,
        limits=limits or Limits(seconds=2.95),
        features=FEATURES,
        picks=[0, 1, 0],
    )


def test_worked_example() -> None:
    world = example().run()

    assert world.dispatches[:5] == [(0.0, 0, 0), (0.0, 1, 1), (1.0, 2, 0), (2.0, 0, 0), (2.5, 3, 1)]
    cache = world.notes("cache")
    similarities = [note["similarity"] for note in cache]
    assert similarities == pytest.approx([0.789352, 0.942990, 0.613941, 0.932568], rel=1e-6)
    assert [(note["rank"], note["length"], note["accepted"]) for note in cache] == [
        (1, 1, True),
        (2, 2, True),
        (1, 3, True),
        (3, 4, True),
    ]
    first, second = world.notes("select")[:2]
    assert (first["device"], first["candidates"]) == (2, 2)
    assert first["score"] == pytest.approx(0.942990 - 0.027778, abs=1e-6)
    assert second["device"] == 3
    assert second["score"] == pytest.approx(0.932568 - 0.027778, abs=1e-6)

    one, two = world.publications()
    assert (one.time, one.facts["slot"], one.facts["weights"]) == (2.0, 0, [1.0, 0.0])
    assert two.time == pytest.approx(2.9)
    assert two.facts["slot"] == 1
    assert two.facts["weights"] == pytest.approx([0.541876, 0.458124], rel=1e-6)
    np.testing.assert_array_equal(world.published[0], vector(3, 20))  # the upload of job 2 from device 2
    expected = 0.541876 * vector(3, 20) + 0.458124 * vector(5, 30)
    np.testing.assert_allclose(world.published[1], expected, rtol=1e-6)


def test_a_slot_continues_from_its_last_upload() -> None:
    world = example().run()
    starts = {job.number: job.weights for job in world.executor.trained}
    np.testing.assert_array_equal(starts[2], vector(1, 0))  # slot 0 continues from the upload of job 0
    np.testing.assert_array_equal(starts[4], vector(2, 10))  # slot 1 from the upload of job 1


def test_a_restarted_slot_continues_from_the_global_model() -> None:
    world = example(Limits(seconds=3.1)).run()
    restarted = next(job for job in world.executor.trained if job.number == 3)
    np.testing.assert_array_equal(restarted.weights, world.published[0])


def test_transfers_count_everything_that_travels() -> None:
    ledger = example().run().engine.ledger
    # six dispatches (two first, one after each of four uploads), four uploads, one collection of four devices
    assert (ledger.downloads, ledger.uploads, ledger.feature_downloads, ledger.feature_uploads) == (6, 4, 4, 4)
    assert ledger.transfers == 14
    assert ledger.bytes == 14 * 8 + 4 * 2 * 4  # models and features in float32


def run_long(train: Any = None, *, seconds: float = 60.0, devices: int = 12, slots: int = 3, **options: Any) -> World:
    """A longer run on random devices."""
    draw = np.random.default_rng(5)
    limits = options.pop("limits", None) or Limits(seconds=seconds, slot_timeout=options.pop("timeout", None))
    times = options.pop("times", None) or draw.uniform(1, 4, devices).tolist()
    method = options.pop("method", CaBaFL)
    return World(
        method(CaBaFLParameters(**{"k": 4, "m": 2, **options})),
        fleet(times, draw.integers(5, 50, devices).tolist()),
        train or (lambda job: job.weights + 1),
        initial=vector(0, 0),
        slots=slots,
        limits=limits,
        features=draw.random((devices, 3)),
    ).run()


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"selection": "similarity"},
        {"selection": "size"},
        {"selection": "random"},
        {"l1_cache": False},
        {"aggregation": "mean"},
        {"features": "labels"},
        {"fair_restart": False},
        {"feature_latency": "instant"},
    ],
    ids=lambda variant: "-".join(f"{k}={v}" for k, v in variant.items()) or "default",
)
def test_variants_run_and_never_share_a_device(variant: dict[str, Any]) -> None:
    world = run_long(**variant)
    assert world.engine.version >= 10
    assert np.isfinite(world.published[-1]).all()
    for event in world.publications():
        weights = event.facts["weights"]
        assert sum(weights) == pytest.approx(1.0)
        assert min(weights) >= 0.0
    assert len({flight.device for flight in world.engine.flights.values()}) == 3


def test_without_cache_every_upload_is_accepted_and_with_gamma_one_only_late_ones() -> None:
    assert all(note["accepted"] for note in run_long(l1_cache=False, gamma=1.0).notes("cache"))
    for note in run_long(gamma=1.0).notes("cache"):
        assert note["accepted"] == (note["trained"] > 2)


@pytest.mark.parametrize("aggregation", ["weighted", "mean"])
def test_without_l1_a_restarted_slot_has_no_weight_until_its_first_upload(aggregation: str) -> None:
    """A slot that has aggregated and not uploaded since then is left out of the aggregations of others."""
    world = run_long(l1_cache=False, seconds=200.0, aggregation=aggregation)
    empty, left_out = {0, 1, 2}, 0  # slots without an upload since their last aggregation
    for event in world.events:
        if isinstance(event, Uploaded):
            empty.discard(event.slot)
        elif isinstance(event, Published):
            weights = event.facts["weights"]
            assert {slot for slot, weight in enumerate(weights) if weight == 0} == empty
            left_out += len(empty)
            empty.add(event.facts["slot"])
    assert left_out > 5


def test_mean_variant_weighs_filled_slots_equally() -> None:
    world = run_long(aggregation="mean")
    last = world.publications()[-1].facts["weights"]
    assert last == pytest.approx([1 / 3] * 3)


def test_random_variant_ignores_balance() -> None:
    assert run_long(selection="random").notes("select") == []


def test_fairness_filter_keeps_selections_even() -> None:
    even = run_long(seconds=400.0, sigma=0.0).engine.selections
    assert even.max() - even.min() <= 2
    uneven = run_long(seconds=400.0, sigma=1.0, selection="size").engine.selections
    assert uneven.max() - uneven.min() > 2


class NaiveFairness(CaBaFL):
    """Computes how uneven selection is from all counts, as the documents define it."""

    def _uneven(self, devices: int) -> bool:
        counts = self.selected.counts
        if counts.sum() == 0:
            return False
        variance = float(np.var(counts / counts.sum()))
        at_random = (1 / counts.sum()) * (1 / len(counts)) * (1 - 1 / len(counts))
        return bool(variance / at_random > self.parameters.sigma + 1e-12)


@pytest.mark.parametrize(("devices", "sigma"), [(2, 1.0), (10, 0.6), (10, 1.0), (40, 0.3), (150, 2.0)])
def test_relative_sigma_on_the_engine_equals_its_definition(devices: int, sigma: float) -> None:
    options: dict[str, Any] = {"devices": devices, "slots": max(1, devices // 10), "seconds": 400.0}
    options |= {"sigma": sigma, "sigma_scale": "relative"}
    real, naive = run_long(**options), run_long(method=NaiveFairness, **options)
    assert real.dispatches == naive.dispatches
    assert len(real.dispatches) > 100


def test_relative_sigma_keeps_selection_about_as_even_as_random_on_any_fleet() -> None:
    """The absolute 1e-6 evens out a small fleet completely and lets a large one be more uneven than random."""
    for devices, seconds in ((10, 600.0), (1000, 50.0)):
        options: dict[str, Any] = {"devices": devices, "slots": devices // 10, "seconds": seconds}
        free, relative, absolute = (
            relative_variance(run_long(**options, **sigma))
            for sigma in ({"sigma": 1e9}, {"sigma_scale": "relative"}, {"sigma_scale": "absolute"})
        )
        assert free > 4
        assert 0.8 < relative < 1.2
        assert absolute < 0.1 if devices == 10 else absolute > 1.5


def relative_variance(world: World) -> float:
    counts = world.engine.selections
    return float(np.var(counts) / counts.mean() * len(counts) / (len(counts) - 1))


@pytest.mark.parametrize(
    ("given", "devices", "simulated", "scale", "sigma"),
    [
        ({}, 100, True, "absolute", 1e-6),
        ({"sigma": 3e-6}, 100, True, "absolute", 3e-6),
        ({}, 100, False, "relative", 1.0),
        ({"sigma": 3e-6}, 10, True, "relative", 3.0),
        ({"sigma": 4e-6}, 10_000, True, "relative", 4.0),
        ({"sigma": 0.0}, 10, True, "relative", 0.0),
        ({"sigma_scale": "absolute"}, 10, False, "absolute", 1e-6),
        ({"sigma_scale": "relative"}, 100, True, "relative", 1.0),
        ({"sigma_scale": "relative", "sigma": 2}, 7, True, "relative", 2.0),
    ],
)
def test_the_scale_of_sigma_follows_from_the_fleet(
    given: dict[str, Any], devices: int, simulated: bool, scale: str, sigma: float
) -> None:
    settled = CaBaFLParameters(**given).settled(devices, simulated)
    assert settled.sigma_scale == scale
    assert settled.sigma == pytest.approx(sigma)
    assert settled.settled(devices, simulated) == settled


def test_collections_follow_every_m_aggregations_one_at_a_time() -> None:
    world = run_long(m=1)
    steps = [event.step for event in world.events if isinstance(event, Collection)]
    assert steps[:4] == ["start", "end", "start", "end"]
    assert all(a != b for a, b in pairwise(steps))


def test_a_collection_due_during_another_starts_afterwards_and_timeouts_leave_rows_unknown() -> None:
    world = World(
        CaBaFL(CaBaFLParameters(k=1, m=1, collection_timeout=5.0)),
        fleet([1.0, 1.0, 1.0, 1.0]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=1,
        limits=Limits(seconds=11.5),
        features=np.eye(4),
    )
    answers = np.array([0.5, 0.5, 0.5, 99.0])
    object.__setattr__(world.engine.fleet, "answer_seconds", answers)
    world.run()
    collections = [event for event in world.events if isinstance(event, Collection)]
    assert [(e.time, e.step, e.missing) for e in collections] == [
        (0.0, "start", 0),
        (0.0, "end", 0),
        (1.0, "start", 0),
        (6.0, "end", 1),
        (6.0, "start", 0),
        (11.0, "end", 1),
        (11.0, "start", 0),
    ]
    method = world.engine.method
    assert isinstance(method, CaBaFL)
    np.testing.assert_array_equal(method.features.total, [1, 1, 1, 0])


def test_a_bad_upload_is_dropped_and_unbooked_and_another_device_gets_the_model() -> None:
    def train(job: TrainJob) -> Weights:
        return vector(np.nan, 0) if job.number == 0 else job.weights + 1

    world = World(
        CaBaFL(CaBaFLParameters(k=2, sigma=1.0)),
        fleet([1.0, 5.0, 1.0, 1.0], [4, 4, 4, 4]),
        train,
        initial=vector(0, 0),
        slots=1,
        limits=Limits(seconds=2.5),
        features=FEATURES,
        picks=[0, 2],
    ).run()
    assert world.losses == [(1.0, 0, "rejected")]
    assert world.engine.ledger.losses == {"rejected": 1}
    assert world.dispatches[:2] == [
        (0.0, 0, 0),
        (1.0, 2, 0),
    ]  # c is still 0: a random selection
    method = world.engine.method
    assert isinstance(method, CaBaFL)
    slot = method.cache.slots[0]
    assert (slot.trained, slot.trace[0], slot.samples) == (1, 2, 8)  # one upload, and the device now training
    assert method.selected.counts.tolist()[0] == 1  # the selection itself stays counted
    assert world.executor.trained[1].weights is world.engine.initial  # the model is unchanged


def test_wrong_shape_is_rejected() -> None:
    world = run_long(lambda job: vector(1, 2, 3) if job.number % 5 == 0 else job.weights + 1)
    assert world.engine.ledger.losses["rejected"] > 3
    assert world.published[-1].shape == (2,)


def test_timeout_frees_the_slot_and_the_late_answer_is_ignored() -> None:
    world = run_long(timeout=2.5, seconds=80.0)
    late = world.engine.ledger.losses["timeout"]
    assert late > 5
    assert world.engine.ledger.uploads + late + len(world.engine.flights) >= world.engine.ledger.dispatches
    assert all(job.device not in (d for _, d, _ in world.losses) for job in world.executor.trained)


def test_a_slot_waits_until_a_device_is_idle() -> None:
    """Two devices, two slots; both time out together, so no device is idle for a while."""
    world = World(
        CaBaFL(CaBaFLParameters(k=2)),
        fleet([10.0, 10.0]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=25.0, slot_timeout=4.0),
        features=np.eye(2),
    ).run()
    assert [t for t, _, _ in world.dispatches] == [0.0, 0.0, 10.0, 10.0, 20.0, 20.0]
    assert world.engine.ledger.losses == {"timeout": 6}


def test_all_devices_busy_with_as_many_slots_as_devices() -> None:
    world = run_long(devices=3, slots=3)
    assert len(world.engine.flights) == 3
    assert world.engine.version > 5


def test_stale_uploads_are_discarded_on_request() -> None:
    world = run_long(limits=Limits(seconds=60.0, max_staleness=0), k=1)
    assert world.engine.ledger.losses["stale"] > 0
    assert set(world.engine.ledger.staleness) == {0}
