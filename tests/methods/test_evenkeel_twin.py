"""EvenKeel against a naive twin written from docs/evenkeel.md: lost, corrupt, absurd, absent and empty devices."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from cabafl.engine.average import AverageRule, RunningAverage
from cabafl.engine.core import EngineSetup, Limits
from cabafl.engine.defence import DefenceRules
from cabafl.engine.inputs import Arrived, Joined, Started
from cabafl.engine.wall import WallEngine
from cabafl.execution.base import TrainJob
from cabafl.execution.inline import LazyExecutor
from cabafl.fleet import Faults, Fleet
from cabafl.learning.evaluation import Score
from cabafl.learning.task import TrainingResult
from cabafl.methods.base import Floats
from cabafl.methods.evenkeel import EvenKeel, EvenKeelParameters, UpdateMemory
from cabafl.rng import rng
from tests.methods.twins import Entry, Twin, log_orders, watched
from tests.scripted import World, vector

INITIAL = vector(0.5, -1.0, 2.0, 0.25, 1.0, 3.0, 2.0)
TRAINABLE = 5
FAULTS = Faults(3, 0.15, 0.05, 0.2, 3.0, 60.0, 10.0)
POWER = 3.0


def trained(job: TrainJob) -> TrainingResult:
    """A device pulls much the same every time; now and then it uploads what no training gives."""
    own, draw = rng(5, "pull", job.device), rng(8, "twin", job.number)
    change = own.normal(0, 0.2, len(INITIAL)) + draw.normal(0, 0.05, len(INITIAL))
    change *= draw.choice([1.0, 0.0, 1e4, 1e9], p=[0.94, 0.02, 0.02, 0.02])
    return TrainingResult((job.weights + change).astype(np.float32))


class EvenKeelTwin(Twin):
    """The page's formulas over lists of updates; ``group`` of each device."""

    def __init__(self, world: World, group: list[int], **options: Any) -> None:
        super().__init__(world, **options)
        self.group = group
        self.here = [device for device, samples in enumerate(self.n) if samples > 0]
        self.h: dict[int, Floats] = {}  # by group
        self.sent_back: dict[int, int] = {}  # uploads by group
        self.counts = dict.fromkeys(range(len(self.n)), 0)
        self.pairs: list[tuple[float, float]] = []
        self.average = self.w.copy()
        self.idles: list[tuple[int, ...]] = []  # before each send
        self.lost: int | None = None
        self.trusts: list[float] = []

    def remembered(self, device: int) -> Floats:
        return self.h.get(self.group[device], np.zeros(self.t))

    def trust(self) -> float:
        if self.o["trust"] != "auto":
            return float(self.o["trust"])
        ages = range(len(self.pairs) - 1, -1, -1)
        products = sum(0.95**age * product for age, (product, _) in zip(ages, self.pairs, strict=True))
        squares = sum(0.95**age * square for age, (_, square) in zip(ages, self.pairs, strict=True))
        return min(1.0, max(0.0, products / squares)) if squares > 0 else 1.0

    def upload(self, entry: Entry) -> None:
        self.lost = None
        k, n = self.group[entry.device], len(self.here)
        eta = min(1.0, 2.0 / min(self.engine.slots, n)) if self.o["step"] == "auto" else self.o["step"]
        h, own, delta = np.mean([self.remembered(d) for d in self.here], axis=0), self.h.get(k), self.delta(entry)
        s = self.trust()
        self.trusts.append(s)
        v = delta + s * (h - self.remembered(entry.device))
        a = (self.version + 1) / n
        decay = self.o["decay"] * a / (a + 10)
        mixed = (1 - eta) * self.w[self.t :] + eta * entry.weights[self.t :]
        self.expected = [np.concatenate([(1 - eta * decay) * self.w[: self.t] + eta * v, mixed])]
        if own is not None:
            self.pairs.append((float((own - h) @ (delta - h)), float((own - h) @ (own - h))))
        self.sent_back[k] = self.sent_back.get(k, 0) + 1
        members = sum(self.group[d] == k for d in self.here)
        old = self.remembered(entry.device)
        mean = old + (delta - old) / min(members, self.sent_back[k])
        self.h[k] = np.clip(mean, -6e4, 6e4).astype(np.float16).astype(float)
        t = self.version + 1
        share = min(1.0, (POWER + 1) / (t + POWER))
        self.average = (1 - share) * self.average + share * self.expected[0]

    def loss(self, entry: Entry) -> None:
        self.lost = entry.device

    def send(self, entry: Entry) -> None:
        """The least selected of the idle ones; the device that has just lost a job only if there is no other."""
        idle = self.idles.pop(0)
        others = [device for device in idle if device != self.lost] or list(idle)
        assert entry.device in others
        assert self.counts[entry.device] == min(self.counts[device] for device in others)
        self.counts[entry.device] += 1
        assert len(self.jobs) <= self.engine.slots

    def idle(self, entry: Entry) -> None:
        self.lost = None


def watch_idle(world: World, naive: EvenKeelTwin) -> None:
    engine: Any = world.engine
    dispatch = engine.dispatch

    def dispatching(*given: Any, **more: Any) -> int | None:
        naive.idles.append(tuple(sorted(engine.idle)))
        job: int | None = dispatch(*given, **more)
        return job

    engine.dispatch = dispatching


def play(sizes: list[int], slots: int, seconds: float = 400.0, **options: Any) -> tuple[World, EvenKeelTwin]:
    """Runs EvenKeel beside its twin and compares every model, every trust and every choice."""
    parameters = EvenKeelParameters(**options)
    devices, log = len(sizes), list[Entry]()
    draw, none = rng(2, "fleet", devices, slots), np.zeros(devices)
    fleet = Fleet(
        np.array(sizes), draw.uniform(1, 9, devices), draw.uniform(0, 2, devices), 0.5, none, none, none, none
    )
    world = World(
        watched(EvenKeel, log)(parameters.settled(devices, simulated=True)),
        fleet,
        trained,
        initial=INITIAL,
        slots=slots,
        limits=Limits(seconds=seconds, evaluate_every=100.0, slot_timeout=12.0),
        trainable=TRAINABLE,
        features=draw.normal(0, 1, (devices, 4)) * np.array(sizes)[:, None],
        faults=FAULTS,
    )
    world.engine.averaging = AverageRule("polynomial", power=POWER)
    world.engine.average = RunningAverage(INITIAL)
    log_orders(world, log)
    naive = EvenKeelTwin(world, [], **parameters.model_dump())
    watch_idle(world, naive)
    world.run()
    method: Any = world.engine.method
    naive.group = method.memory.group.tolist()
    naive.follow(log)
    assert not naive.expected
    assert naive.published == world.engine.version > 0
    assert [event.facts["trust"] for event in world.publications()] == pytest.approx(naive.trusts, rel=1e-3, abs=1e-4)
    np.testing.assert_allclose(world.engine.result, naive.average, rtol=1e-3, atol=1e-4)
    return world, naive


PLAIN = [40, 7, 90, 12, 55, 31, 8, 77, 20]
EMPTY = [40, 0, 10**9, 12, 0, 0, 8, 77, 0, 1]


@pytest.mark.parametrize("trust", ["auto", 0.0, 1.0])
@pytest.mark.parametrize(("sizes", "slots"), [(PLAIN, 4), ([5], 1), (PLAIN, 9), (EMPTY, 3), (EMPTY, 10), ([3, 3], 8)])
def test_a_memory_per_device(sizes: list[int], slots: int, trust: Any) -> None:
    world, naive = play(sizes, slots, trust=trust)
    assert world.losses
    assert 0 not in [sizes[device] for _, device, _ in world.dispatches]
    assert len(naive.h) == np.count_nonzero(sizes)


@pytest.mark.parametrize("groups", [1, 3, 8])
@pytest.mark.parametrize(("sizes", "slots"), [(PLAIN, 4), (EMPTY, 3), (PLAIN + EMPTY + PLAIN, 10)])
def test_groups_share_a_memory(sizes: list[int], slots: int, groups: int) -> None:
    world, naive = play(sizes, slots, groups=groups, decay=0.1)
    assert len(naive.h) <= groups
    assert world.engine.ledger.feature_downloads > 0


def test_groups_without_features() -> None:
    """Devices share memories by number."""
    play(PLAIN, 4, groups=4, features="off", step=0.7)


def server_for(places: int, joined: int) -> WallEngine:
    """A server that has started."""
    method = EvenKeel(EvenKeelParameters(step=0.5, decay=0.0).settled(places, simulated=False))
    setup = EngineSetup(
        method=method,
        executor=LazyExecutor(1, [], lambda job: Score(((0.0,),), 0.0, 1)),
        initial=vector(0, 0),
        emit=lambda event: None,
        seed=1,
        slots=4,
        limits=Limits(seconds=1e6),
        trainable=2,
        defence=DefenceRules(update_clip=None),
    )
    engine = WallEngine(setup, places)
    for device in range(joined):
        engine.handle(Joined(0.0, device, 10))
    engine.handle(Started(0.0))
    return engine


def answer(engine: WallEngine, count: int) -> list[int]:
    """So many uploads; all devices pull (1, 0), and each its own way besides. Returns the devices."""
    devices = []
    for number in range(engine.ledger.uploads, engine.ledger.uploads + count):
        job = engine.flights[number]
        pull = vector(1.0, float(rng(6, "own", job.device).normal()))
        engine.handle(Arrived(1.0 + number, number, job.weights + pull, 1.0, 1.0))
        devices.append(job.device)
    return devices


def test_places_that_nobody_takes_change_nothing() -> None:
    """A server for many devices of which few join goes where one for these few goes, as far; draws may differ."""
    exact, roomy = server_for(8, 8), server_for(90, 8)
    assert Counter(answer(exact, 64)) == Counter(answer(roomy, 64)) == dict.fromkeys(range(8), 8)
    assert exact.model[0] == roomy.model[0] > 25
    assert roomy.model[1] == pytest.approx(exact.model[1], abs=1)
    means = [engine.method.memory.mean for engine in (exact, roomy)]  # type: ignore[attr-defined]
    np.testing.assert_allclose(means[0], means[1], atol=1e-3)


def test_devices_that_join_late_take_their_turn() -> None:
    """They do not get all jobs until they have been selected as often as the others."""
    engine = server_for(20, 8)
    answer(engine, 80)
    for device in range(8, 16):
        engine.handle(Joined(80.5, device, 10))
    later = Counter(answer(engine, 64))
    assert set(later) == set(range(16))
    assert max(later.values()) <= 6


def test_devices_that_join_late_count_from_then_on() -> None:
    memory = UpdateMemory(np.array([0, 1, 0, 1]), 1)
    memory.count(np.array([5, 0, 0, 0]))
    memory.remember(0, np.array([2.0]))
    assert memory.mean.tolist() == [2.0]
    memory.count(np.array([5, 7, 0, 0]))  # of a group that has sent nothing: counts as zero
    assert memory.mean.tolist() == [1.0]
    memory.remember(1, np.array([-1.0]))
    assert memory.mean.tolist() == [0.5]
    memory.count(np.array([5, 7, 0, 3]))
    assert memory.mean.tolist() == [0.0]
    memory.count(np.array([5, 7, 3, 3]))
    assert memory.mean.tolist() == [0.5]
