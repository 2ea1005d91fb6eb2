"""EvenKeel: worked steps, its trust in what it remembers, groups, fairness."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cabafl import simulate
from cabafl.config import load_experiment
from cabafl.engine.core import Limits
from cabafl.methods.base import Weights
from cabafl.methods.evenkeel import LARGEST_HALF, EvenKeel, EvenKeelParameters, UpdateMemory
from cabafl.methods.groups import grouped
from cabafl.recording.events import Dispatched
from tests.methods.trainers import updates_in_turn
from tests.runs import settings
from tests.scripted import World, fleet, vector

UPDATES = [(0.4, 0.0), (0.2, 0.2), (-0.2, 0.6), (0.1, 0.0)]
HALF = 1e-3  # what is remembered is rounded to half precision


def four_uploads(trust: float | str) -> World:
    """Two devices in two slots: device 0 uploads at 1, 2 and 3, device 1 at 2.5."""
    return World(
        EvenKeel(EvenKeelParameters(step=0.5, trust=trust, decay=0.0, features="off")),  # type: ignore[arg-type]
        fleet([1.0, 2.5]),
        updates_in_turn(UPDATES),
        initial=vector(1, 1),
        slots=2,
        limits=Limits(seconds=3.0),
    ).run()


def test_worked_steps() -> None:
    """The first visit of a device counts as it is, plus the mean of the fleet; later ones without what repeats."""
    world = four_uploads(1.0)
    assert [event.facts["device"] for event in world.publications()] == [0, 0, 1, 0]
    # v = (0.4, 0), (0.2, 0.2) + (0.2, 0) - (0.4, 0), (-0.2, 0.6) + (0.1, 0.1), (0.1, 0) + (0, 0.4) - (0.2, 0.2)
    expected = [(1.2, 1.0), (1.2, 1.1), (1.15, 1.45), (1.1, 1.55)]
    np.testing.assert_allclose(world.published, expected, atol=HALF)
    method = world.engine.method
    assert isinstance(method, EvenKeel)
    assert method.memory is not None
    np.testing.assert_allclose(method.memory.mean, [(0.1 - 0.2) / 2, (0.0 + 0.6) / 2], atol=HALF)


def test_without_trust_every_update_counts_as_it_is() -> None:
    world = four_uploads(0.0)
    expected = np.array([1.0, 1.0]) + 0.5 * np.cumsum(UPDATES, axis=0)
    np.testing.assert_allclose(world.published, expected, atol=1e-6)


def test_trust_is_what_the_last_update_predicts() -> None:
    """Device 0 repeats nothing of its first update at 2, and much of its second at 3."""
    world = four_uploads("auto")
    assert [event.facts["trust"] for event in world.publications()] == pytest.approx([1, 1, 0, 0], abs=HALF)
    method = world.engine.method
    assert isinstance(method, EvenKeel)
    # Without the mean: (0.2, 0) and (0, 0.2), then (0.2, -0.2) and (0.1, -0.4).
    assert method.trust.share == pytest.approx((0.02 + 0.08) / (0.95 * 0.04 + 0.08), abs=0.01)


@pytest.mark.parametrize(("slots", "step"), [(1, 1.0), (2, 1.0), (4, 0.5)])
def test_the_step_follows_the_number_of_slots(slots: int, step: float) -> None:
    world = World(
        EvenKeel(EvenKeelParameters(decay=0.0, features="off")),
        fleet([1.0] * 5),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=slots,
        limits=Limits(seconds=1.0),
    ).run()
    np.testing.assert_allclose(world.published[0], [step], rtol=1e-6)


def test_weight_decay_sets_in_with_the_visits() -> None:
    """One device and no updates: 0.5 * 0.1 * a / (a + 10) of the model goes at the a-th visit."""
    world = World(
        EvenKeel(EvenKeelParameters(step=0.5, decay=0.1, features="off")),
        fleet([1.0]),
        lambda job: job.weights,
        initial=vector(1),
        slots=1,
        limits=Limits(seconds=3.0),
    ).run()
    shares = [1 - 0.5 * 0.1 * visits / (visits + 10) for visits in (1, 2, 3)]
    np.testing.assert_allclose(np.ravel(world.published), np.cumprod(shares), rtol=1e-6)


def test_statistics_are_mixed_and_stay_between_old_and_uploaded() -> None:
    """The second entry is a buffer: never calibrated, so a variance cannot become negative."""

    def train(job: object) -> Weights:
        return vector(0.0, 0.25)

    world = World(
        EvenKeel(EvenKeelParameters(step=0.5, decay=0.0, features="off")),
        fleet([1.0, 1.0]),
        train,
        initial=vector(1, 1),
        slots=2,
        limits=Limits(seconds=3.0),
        trainable=1,
    ).run()
    np.testing.assert_allclose([model[1] for model in world.published[:3]], [0.625, 0.4375, 0.34375], rtol=1e-6)
    method = world.engine.method
    assert isinstance(method, EvenKeel)
    assert method.memory is not None
    assert method.memory.mean.shape == (1,)


def test_a_lost_job_changes_nothing_that_is_remembered() -> None:
    """Device 0 answers nonsense: its slot goes on, and the other devices' models are as without it."""

    def train(job: object) -> Weights:
        device = job.device  # type: ignore[attr-defined]
        return vector(np.nan) if device == 0 else vector(float(job.weights[0]) + 1)  # type: ignore[attr-defined]

    world = World(
        EvenKeel(EvenKeelParameters(step=0.5, decay=0.0, features="off")),
        fleet([1.0, 1.0, 1.0]),
        train,
        initial=vector(0),
        slots=1,
        limits=Limits(seconds=9.0),
    ).run()
    method = world.engine.method
    assert isinstance(method, EvenKeel)
    assert method.memory is not None
    assert sorted(method.memory.updates) == [1, 2]
    assert len(world.losses) == 3
    assert len(method.in_flight) == 1


def test_every_device_is_selected_equally_often(tmp_path: Path) -> None:
    sent: Counter[int] = Counter()

    def listen(event: object) -> None:
        if isinstance(event, Dispatched):
            sent[event.device] += 1

    words = ["data.dataset=synthetic", "data.devices=20", "model.name=mlp", "run.virtual_time=200", "run.workers=0"]
    simulate(load_experiment(None, [*words, "method.name=evenkeel"]), listener=listen)
    assert len(sent) == 20
    assert max(sent.values()) - min(sent.values()) <= 2


def test_a_run_with_a_number_of_jobs_ends() -> None:
    world = World(
        EvenKeel(EvenKeelParameters(decay=0.0, features="off")),
        fleet([1.0, 1.5, 2.0]),
        lambda job: job.weights + 1,
        initial=vector(0),
        slots=2,
        limits=Limits(seconds=None, max_dispatches=5),
    ).run()
    assert len(world.dispatches) == len(world.published) == 5
    method = world.engine.method
    assert isinstance(method, EvenKeel)
    assert method.selected.total == 5


def test_groups_share_a_memory_that_is_the_mean_of_their_members() -> None:
    memory = UpdateMemory(np.array([0, 1, 0]), 1)
    memory.remember(0, np.array([2.0]))
    memory.remember(2, np.array([4.0]))  # both members of group 0 have sent: their mean
    memory.remember(1, np.array([-1.0]))
    assert memory.of(0) is memory.of(2)
    np.testing.assert_allclose([memory.of(0), memory.of(1)], [[3.0], [-1.0]])  # type: ignore[arg-type]
    np.testing.assert_allclose(memory.mean, [(3.0 + 3.0 - 1.0) / 3])
    memory.remember(0, np.array([5.0]))  # then half of the way to each new one
    np.testing.assert_allclose(memory.of(2), [4.0])  # type: ignore[arg-type]


def test_the_mean_is_that_of_the_rounded_memories() -> None:
    draw = np.random.default_rng(1)
    memory = UpdateMemory(np.arange(7) % 4, 50)
    for number in range(200):
        memory.remember(number % 7, draw.normal(0, 10.0 ** draw.integers(-6, 3), 50))
    rows = [memory.of(device) for device in range(7)]
    np.testing.assert_allclose(memory.mean, np.mean(np.array(rows, dtype=np.float64), axis=0), atol=1e-9)


def test_a_large_group_goes_on_learning() -> None:
    """Half precision would lose shares of 1/10,000: the pull of the group turns, and its memory has to follow."""
    draw = np.random.default_rng(0)
    memory, pull = UpdateMemory(np.zeros(10_000, dtype=np.int64), 20), draw.normal(0, 1e-3, 20)
    for number in range(12_000):
        memory.remember(number % 10_000, (pull if number < 6_000 else -pull) + draw.normal(0, 1e-3, 20))
    found = np.asarray(memory.of(0), dtype=np.float64)
    assert np.linalg.norm(found + pull) < 0.2 * np.linalg.norm(pull)


def test_an_absurd_update_does_not_overflow_the_memory() -> None:
    memory = UpdateMemory(np.array([0]), 1)
    memory.remember(0, np.array([1e30]))
    np.testing.assert_allclose(memory.mean, [LARGEST_HALF], rtol=1e-3)


def kinds(*counts: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Devices of clearly different data; ``counts`` of each kind, with different sample counts."""
    draw = np.random.default_rng(3)
    base = 5 + 5 * np.eye(len(counts), 8)
    rows = [base[kind] + draw.normal(0, 0.01, 8) for kind, count in enumerate(counts) for _ in range(count)]
    return np.array(rows, dtype=np.float32)


def test_devices_of_similar_data_are_grouped() -> None:
    sizes = np.array([10, 200, 30, 40, 5, 60, 70])
    features = kinds(3, 2, 2) * sizes[:, None].astype(np.float32)
    groups = grouped(features, sizes, 3)
    assert groups.tolist() == [groups[0]] * 3 + [groups[3]] * 2 + [groups[5]] * 2
    assert len(set(groups.tolist())) == 3


def test_groups_are_few_repeatable_and_numbered_without_gaps() -> None:
    features = np.random.default_rng(5).random((40, 6)).astype(np.float32)
    sizes = np.full(40, 10)
    groups = grouped(features, sizes, 7)
    assert sorted(set(groups.tolist())) == list(range(groups.max() + 1))
    assert groups.max() < 7
    shifted = np.empty(40 * 6 + 1, dtype=np.float32)[1:].reshape(40, 6)  # another alignment in memory
    shifted[:] = features
    assert grouped(shifted, sizes, 7).tolist() == groups.tolist()


def test_unknown_and_equal_features_are_no_error() -> None:
    assert grouped(np.zeros((4, 3), dtype=np.float32), np.array([5, 5, 0, 5]), 2).tolist() == [0, 0, 0, 0]
    features = np.ones((4, 3), dtype=np.float32)
    features[2] = 0.0
    assert set(grouped(features, np.ones(4, dtype=np.int64), 9).tolist()) == {0}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fleet_larger_than_its_groups_learns(workers: int, tmp_path: Path) -> None:
    words = settings("evenkeel", "method.groups=4", f"run.workers={workers}")
    result = simulate(load_experiment(None, words), tmp_path / "run")
    assert result.metrics["feature_downloads"].iloc[-1] == 12
    assert result.summary["final_accuracy"] > 2 * result.metrics["accuracy"].iloc[0]


def test_a_small_fleet_reports_no_features() -> None:
    result = simulate(load_experiment(None, settings("evenkeel", "run.workers=0")))
    assert result.summary["feature_downloads"] == 0
