"""Nine methods against naive twins, over hundreds of random events with lost, corrupt, slow and absent devices."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from cabafl import methods
from cabafl.engine.core import Limits
from cabafl.execution.base import TrainJob
from cabafl.fleet import Faults, Fleet
from cabafl.learning.task import TrainingResult
from cabafl.methods.base import Floats
from cabafl.rng import rng
from tests.methods.twins import MOMENTUM, RATE, Entry, Twin, Variates, cosine, log_orders, watched
from tests.scripted import World, vector

EPOCHS = 5
INITIAL = vector(0.5, -1.0, 2.0, 0.25, 1.0, 3.0, 2.0)
TRAINABLE = 5


def trained(job: TrainJob) -> TrainingResult:
    draw = rng(8, "twin", job.number)
    weights = (job.weights + draw.normal(0, 0.2, len(job.weights))).astype(np.float32)
    epochs = EPOCHS if job.objective.epochs is None else job.objective.epochs
    return TrainingResult(weights, draw.uniform(0, 3), draw.uniform(0, 9), int(draw.integers(1, 9)), epochs)


def world(name: str, log: list[Entry], devices: int, slots: int, link: float, **options: Any) -> World:
    draw = rng(2, "fleet", devices, slots)
    sizes, none = draw.integers(5, 90, devices), np.zeros(devices)
    links = link * draw.uniform(0.2, 2, devices)
    fleet = Fleet(sizes, draw.uniform(1, 9, devices), links, 0.5, none, none, none, none)
    cls = methods.find(name)
    made = World(
        watched(cls, log)(cls.Parameters(**options)),
        fleet,
        trained,
        initial=INITIAL,
        slots=slots,
        limits=Limits(seconds=600.0, evaluate_every=100.0, slot_timeout=12.0),
        trainable=TRAINABLE,
        epochs=EPOCHS,
        learning_rate=RATE,
        momentum=MOMENTUM,
        features=draw.integers(0, 30, (devices, 4)),
        faults=Faults(3, 0.15, 0.05, 0.2, 3.0, 60.0, 10.0),
    )
    log_orders(made, log)
    return made


class ScaffoldTwin(Twin):
    def __init__(self, made: World, **options: Any) -> None:
        super().__init__(made, **options)
        self.variates = Variates(self.t)
        self.back: list[tuple[Entry, Floats]] = []

    def send(self, entry: Entry) -> None:
        assert not self.back, "all of a round are sent together"
        self.variates.check(entry)

    def upload(self, entry: Entry) -> None:
        self.back.append((entry, self.variates.learn(entry, self.delta(entry), self.variates.c)))
        self.loss(entry)

    def loss(self, entry: Entry) -> None:
        if self.jobs or not self.back:
            return
        entries, changes = [entry for entry, _ in self.back], [change for _, change in self.back]
        mean = np.mean([self.delta(entry) for entry in entries], axis=0)
        self.expected = [self.model(self.o.get("server_lr", 1.0) * mean, entries, [1] * len(entries))]
        self.variates.c = self.variates.c + np.sum(changes, axis=0) / len(self.n)
        self.back = []


class FedACTwin(Twin):
    def __init__(self, made: World, **options: Any) -> None:
        super().__init__(made, **options)
        self.variates = Variates(self.t)
        self.c_sent: dict[int, Floats] = {}
        self.m, self.q = np.zeros(self.t), np.zeros(self.t)
        self.buffer: list[tuple[Entry, Floats]] = []

    def send(self, entry: Entry) -> None:
        self.variates.check(entry)
        self.c_sent[entry.job] = self.variates.c

    def upload(self, entry: Entry) -> None:
        self.buffer.append((entry, self.variates.learn(entry, self.delta(entry), self.c_sent[entry.job])))
        if len(self.buffer) < self.o["buffer"]:
            return
        entries = [entry for entry, _ in self.buffer]
        r = np.array([max(cosine((self.w - e.sent)[: self.t], self.delta(e)), 0.1) for e in entries])
        omega = r / r.sum()
        d = omega @ np.array([self.delta(e) for e in entries])
        self.m, self.q = 0.6 * self.m + 0.4 * d, 0.9 * self.q + 0.1 * d**2
        step = 0.001 * (0.6 * self.m + 0.4 * d) / (np.sqrt(self.q) + 1e-8)
        self.expected = [self.model(step, entries, omega)]
        self.variates.c = self.variates.c + omega @ np.array([change for _, change in self.buffer])
        self.buffer = []


class PeriodicTwin(Twin):
    """Ready devices wait; at a tick the best of all subsets uploads, the others are cancelled."""

    def __init__(self, made: World, **options: Any) -> None:
        super().__init__(made, **options)
        self.labels = made.executor.table
        self.tick = -1
        self.at: dict[int, int] = {}  # s_k by job
        self.waiting: dict[int, int] = {}  # device by job
        self.asked: dict[int, int] = {}  # age by job
        self.back: list[tuple[Entry, int]] = []
        self.skipped = 0

    def send(self, entry: Entry) -> None:
        assert entry.objective is not None
        assert entry.objective.hold
        self.at[entry.job] = self.tick

    def ready(self, entry: Entry) -> None:
        self.waiting[entry.job] = entry.device

    def timer(self, entry: Entry) -> None:
        self.tick += 1
        if self.asked:
            self.skipped += 1
            return
        if not self.waiting:
            return
        most = max(1, int(self.o["fraction"] * len(self.n)))
        subsets = combinations(self.waiting, min(most, len(self.waiting)))
        best = min(subsets, key=lambda jobs: (self.unevenness(jobs), sorted(self.waiting[job] for job in jobs)))
        self.asked = {job: self.tick - self.at[job] - 1 for job in best}
        self.orders = [("fetch" if job in best else "cancel", job) for job in self.waiting]
        self.waiting = {}

    def unevenness(self, jobs: tuple[int, ...]) -> float:
        h = self.labels[[self.waiting[job] for job in jobs]].sum(axis=0)
        return float(((h - h.mean()) ** 2).sum()) / len(jobs) ** 2

    def upload(self, entry: Entry) -> None:
        self.back.append((entry, self.asked[entry.job]))
        self.loss(entry)

    def loss(self, entry: Entry) -> None:
        self.waiting.pop(entry.job, None)
        if self.asked.pop(entry.job, None) is None or self.asked or not self.back:
            return
        base = {"equal": 1.0, "fresh": 2.3 / np.e, "old": np.e / 2.3}[self.o.get("age", "equal")]
        q = np.array([self.n[entry.device] * base**age for entry, age in self.back])
        self.expected = [q / q.sum() @ np.array([entry.weights for entry, _ in self.back])]
        self.back = []


class FADASTwin(Twin):
    def __init__(self, made: World, **options: Any) -> None:
        super().__init__(made, **options)
        self.m, self.v, self.u = np.zeros(self.t), np.zeros(self.t), np.zeros(self.t)
        self.step, self.buffer = 0, []  # type: tuple[int, list[Entry]]

    def upload(self, entry: Entry) -> None:
        self.buffer.append(entry)
        if len(self.buffer) < self.o["buffer"]:
            return
        self.step += 1
        d = np.mean([self.delta(e) for e in self.buffer], axis=0)
        self.m, self.v = 0.9 * self.m + 0.1 * d, 0.99 * self.v + 0.01 * d**2
        self.u = np.maximum(self.u, self.v)
        late = max(self.staleness(e) for e in self.buffer)
        eta = 0.001 / late if late > 1 else 0.001
        m, u = self.m / (1 - 0.9**self.step), np.sqrt(self.u) / np.sqrt(1 - 0.99**self.step)
        self.expected = [self.model(eta * m / (u + 1e-8), self.buffer, [1] * len(self.buffer))]
        self.buffer = []


class PORTTwin(Twin):
    def __init__(self, made: World, **options: Any) -> None:
        super().__init__(made, **options)
        self.buffer: list[Entry] = []
        self.told: set[int] = set()

    def upload(self, entry: Entry) -> None:
        self.buffer.append(entry)
        self.loss(entry)

    def loss(self, entry: Entry) -> None:
        s = self.o["bound"]
        if len(self.buffer) < self.o["buffer"]:
            return
        late = [job for job, sent in self.jobs.items() if self.version - sent.version > s]
        if late:
            self.orders = [("finish", job) for job in late]
            self.told |= set(late)
            return
        x = []
        for e in self.buffer:
            likeness = cosine((self.w - e.sent)[: self.t], self.delta(e))
            x.append(self.n[e.device] * ((likeness + 1) / 2 + 3 * s / (s + self.staleness(e))))
        p = np.array(x) / np.sum(x)
        self.expected = [self.model(p @ np.array([self.delta(e) for e in self.buffer]), self.buffer, p)]
        self.buffer = []


class PiscesTwin(Twin):
    def __init__(self, made: World, **options: Any) -> None:
        super().__init__(made, **options)
        self.buffer: list[Entry] = []
        self.last, self.lags, self.quality = {}, {}, {}  # type: tuple[dict[int, float], dict[int, list[int]], Any]
        self.ticks = self.stepped = 0
        self.sends: list[Entry] = []  # since the last tick
        self.tried: set[int] = set()

    def upload(self, entry: Entry) -> None:
        assert entry.upload is not None
        assert entry.upload.square_loss is not None
        self.buffer.append(entry)
        self.last[entry.device] = entry.upload.duration
        self.lags.setdefault(entry.device, []).append(self.staleness(entry))
        self.quality[entry.device] = self.n[entry.device] * np.sqrt(entry.upload.square_loss)

    def timer(self, entry: Entry) -> None:
        self.ticks += 1
        self.sends = []
        self.tried = set(self.lags)
        slowest = max((self.last.get(sent.device, 180.0) for sent in self.jobs.values()), default=0.0)
        passed = (self.ticks - self.stepped) * self.o["tick"]
        if not self.buffer or passed < slowest / self.engine.slots:
            self.free = set(entry.idle) - {e.device for e in self.buffer}
            return
        n = np.array([self.n[e.device] for e in self.buffer])
        shares = n / n.sum() * np.array([(1 + self.staleness(e)) ** -0.5 for e in self.buffer])
        self.expected = [self.model(shares @ np.array([self.delta(e) for e in self.buffer]), self.buffer, shares)]
        self.buffer, self.stepped, self.free = [], self.ticks, set(entry.idle)

    def score(self, device: int) -> float:
        return float(self.quality[device] * (1 + np.mean(self.lags[device][-5:])) ** -0.5)

    def send(self, entry: Entry) -> None:
        """Those that were tried come first, the best of them; only a device whose upload does not wait is sent."""
        assert len(self.jobs) <= self.engine.slots
        if entry.time == 0:
            return
        assert entry.device in self.free
        self.sends.append(entry)
        if entry.device in self.tried:
            assert all(sent.device in self.tried for sent in self.sends)
            best = sorted((d for d in self.free if d in self.tried), key=self.score, reverse=True)
            assert [sent.device for sent in self.sends] == best[: len(self.sends)]


class AsyncFedEDTwin(Twin):
    def __init__(self, made: World, **options: Any) -> None:
        super().__init__(made, **options)
        self.epochs: dict[int, int] = {}

    def send(self, entry: Entry) -> None:
        assert entry.objective is not None
        assert entry.objective.epochs == self.epochs.get(entry.device, EPOCHS)

    def upload(self, entry: Entry) -> None:
        delta = self.delta(entry)
        g = float(np.linalg.norm((self.w - entry.sent)[: self.t]) / np.linalg.norm(delta))
        step = 1 / (g + 1)
        buffers = (1 - step) * self.w[self.t :] + step * entry.weights[self.t :]
        self.expected = [np.concatenate([self.w[: self.t] + step * delta, buffers])]
        epochs = self.epochs.get(entry.device, EPOCHS) + int(np.floor((3 - g) * self.o["kappa"]))
        self.epochs[entry.device] = min(max(epochs, 1), 4 * EPOCHS)


class AREATwin(Twin):
    def __init__(self, made: World, **options: Any) -> None:
        super().__init__(made, **options)
        self.y = np.tile(self.w, (len(self.n), 1))
        self.count = 0

    def send(self, entry: Entry) -> None:
        assert entry.objective is not None
        assert entry.objective.lr_scale == pytest.approx(self.n[entry.device] / self.n.mean())

    def upload(self, entry: Entry) -> None:
        self.y[entry.device] = entry.weights
        self.count += 1
        if self.count % self.o["buffer"] == 0:
            self.expected = [self.y.mean(axis=0)]


class FedATTwin(Twin):
    def __init__(self, made: World, **options: Any) -> None:
        super().__init__(made, **options)
        self.tier: dict[int, int] | None = None  # None: the profile
        self.seconds: dict[int, float] = {}
        self.back: dict[int, list[Entry]] = {0: []}

    def of(self, device: int) -> int:
        return 0 if self.tier is None else self.tier.get(device, self.m)

    def send(self, entry: Entry) -> None:
        assert entry.objective is not None
        assert entry.objective.prox == (0.0 if self.tier is None else 0.4)
        mates = [sent for sent in self.jobs.values() if self.of(sent.device) == self.of(entry.device)]
        assert len(mates) <= (self.engine.slots if self.tier is None else self.engine.slots // self.m)

    def upload(self, entry: Entry) -> None:
        assert entry.upload is not None
        self.back[self.of(entry.device)].append(entry)
        if self.tier is None:
            self.seconds[entry.device] = entry.upload.duration
        self.loss(entry)

    def loss(self, entry: Entry) -> None:
        """The profile is over when nobody is sent a job any more."""
        tier = self.of(entry.device)
        if any(self.of(sent.device) == tier for sent in self.jobs.values()):
            return
        if tier == 0 and self.log[self.log.index(entry) + 1].kind == "send":
            return
        back, self.back[tier] = self.back[tier], []
        if not back:
            return
        n = np.array([self.n[e.device] for e in back])
        mean = n / n.sum() @ np.array([e.weights for e in back])
        if self.tier is None:
            self.expected = [mean]
            order = sorted(self.seconds, key=lambda device: (self.seconds[device], device))
            self.m = min(self.o["tiers"], self.engine.slots, len(order))
            tiers: dict[int, int] = {}
            size, longer = divmod(len(order), self.m)
            for m in range(1, self.m + 1):
                part, order = order[: size + (m <= longer)], order[size + (m <= longer) :]
                tiers |= dict.fromkeys(part, m)
            self.tier = tiers
            self.models, self.counts = [mean] * self.m, [1] * self.m
            self.back = {m: [] for m in range(1, self.m + 1)}
            return
        self.models[tier - 1], self.counts[tier - 1] = mean, self.counts[tier - 1] + 1
        share = np.array(self.counts[::-1]) / sum(self.counts)
        self.expected = [share @ np.array(self.models)]

    def follow(self, log: list[Entry]) -> None:
        self.log = log
        super().follow(log)


CASES: list[tuple[str, type[Twin], dict[str, Any]]] = [
    ("scaffold", ScaffoldTwin, {}),
    ("scaffold", ScaffoldTwin, {"server_lr": 0.5}),
    ("fedac", FedACTwin, {"buffer": 3}),
    ("fedac", FedACTwin, {"buffer": 11}),
    ("periodic", PeriodicTwin, {"fraction": 0.3, "period": 4.0, "trials": 10_000}),
    ("periodic", PeriodicTwin, {"fraction": 0.3, "period": 1.5, "trials": 10_000, "age": "old"}),
    ("periodic", PeriodicTwin, {"fraction": 0.5, "period": 0.7, "trials": 10_000, "age": "fresh"}),
    ("fadas", FADASTwin, {"buffer": 2}),
    ("fadas", FADASTwin, {"buffer": 9}),
    ("port", PORTTwin, {"buffer": 2, "bound": 2}),
    ("port", PORTTwin, {"buffer": 7, "bound": 1}),
    ("pisces", PiscesTwin, {"tick": 5.0}),
    ("pisces", PiscesTwin, {"tick": 0.5}),
    ("asyncfeded", AsyncFedEDTwin, {"kappa": 0.05}),
    ("asyncfeded", AsyncFedEDTwin, {"kappa": 0.7}),
    ("area", AREATwin, {"buffer": 3}),
    ("area", AREATwin, {"buffer": 1}),
    ("fedat", FedATTwin, {"tiers": 5}),
    ("fedat", FedATTwin, {"tiers": 2}),
]
FLEETS = [(9, 4, 2.0), (3, 10, 1.0), (1, 1, 5.0), (14, 6, 0.0)]


@pytest.mark.parametrize(("devices", "slots", "link"), FLEETS)
@pytest.mark.parametrize(("name", "twin", "options"), CASES)
def test_the_same_models_as_a_naive_twin(
    name: str, twin: type[Twin], options: dict[str, Any], devices: int, slots: int, link: float
) -> None:
    log: list[Entry] = []
    made = world(name, log, devices, slots, link, **options)
    naive = twin(made, **options)
    made.run()
    naive.follow(log)
    assert not naive.expected
    assert naive.published == made.engine.version
    assert made.engine.ledger.dispatches > 20 * min(devices, slots)
    assert naive.published > 5 or devices == 1
