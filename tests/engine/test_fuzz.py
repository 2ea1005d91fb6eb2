"""Nothing a device sends stops a run or makes a number that is not finite: every method, any order of inputs.

``CABAFL_FUZZ=2000`` tries so many sequences per method instead of a few.
"""

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabafl.checked import make_method
from cabafl.config import load_experiment
from cabafl.engine.average import AverageRule
from cabafl.engine.core import EngineSetup, Limits
from cabafl.engine.defence import DefenceRules
from cabafl.engine.inputs import (
    Arrived,
    Changed,
    Failed,
    Gathered,
    Held,
    Input,
    Joined,
    Left,
    Passed,
    Started,
    Stopping,
)
from cabafl.engine.wall import WallEngine
from cabafl.execution.inline import LazyExecutor
from cabafl.learning.evaluation import Score
from cabafl.methods.base import LossReason, Method, Weights
from cabafl.recording.events import Event
from cabafl.state import Decoder, Encoder
from tests.runs import ALL_METHODS, AUTO
from tests.scripted import vector

EXAMPLES = int(os.environ.get("CABAFL_FUZZ", "15"))
DEVICES, WIDTH = 7, 3
INITIAL = vector(0.5, -0.25, 1.0, 2.0, 1.0)
TRAINABLE = 4
VARIANTS: dict[str, list[str]] = {
    **{name: [f"method.name={name}"] for name in ALL_METHODS if name != "cabafl"},
    "everything": ["method.name=tests.engine.orders_method:Everything"],
    "cabafl": ["method.m=2", "method.k=2"],
    "cabafl auto": AUTO,
    "cabafl by size": ["method.m=1", "method.k=1", "method.selection=size", "method.aggregation=mean"],
    "cabafl with alpha 0": ["method.m=2", "method.k=3", "method.alpha=0", "method.l1_cache=false"],
    "fedavg over all": ["method.name=fedavg", "method.normaliser=all", "method.round_timeout=4"],
    "fedprox by size": ["method.name=fedprox", "method.sampling=proportional", "method.partial_fraction=0.5"],
    "fedasync hinge": ["method.name=fedasync", "method.function=hinge", "method.a=10", "method.alpha=1"],
    "fedsa over all": ["method.name=fedsa", "method.normaliser=all", "method.mixing=sequential", "method.tau0=1"],
    "fedsa by uploads": ["method.name=fedsa", "method.counts=uploads", "method.round_timeout=4"],
    "safa with all": ["method.name=safa", "method.population=all", "method.cache_init=first_epoch"],
    "safa over all": ["method.name=safa", "method.aggregate_over=all", "method.tau=1", "method.round_timeout=4"],
    "safa in flight": ["method.name=safa", "method.aggregate_over=inflight", "method.lag_rule=official_code"],
    "wkafl by loss": ["method.name=wkafl", "method.stage_rule=loss", "method.buffer=1", "method.sim_min=-1"],
    "scaffold by time": ["method.name=scaffold", "method.round_timeout=4", "method.server_lr=9.0"],
    "fedac at once": ["method.name=fedac", "method.buffer=1", "method.server_lr=2.0", "method.fresh=floor"],
    "periodic by age": ["method.name=periodic", "method.period=3", "method.age=old", "method.trials=2"],
    "port with a bound": ["method.name=port", "method.bound=1", "method.buffer=1", "method.staleness_weight=0"],
    "pisces in a hurry": ["method.name=pisces", "method.tick=0.5", "method.explore=0", "method.first_latency=1"],
    "fedat from 0": ["method.name=fedat", "method.tiers=2", "method.count_start=0"],
    "area at once": ["method.name=area", "method.buffer=1"],
    "fedbuff big steps": ["method.name=fedbuff", "method.server_lr=50.0", "method.buffer=1"],
    "evenkeel in groups": ["method.name=evenkeel", "method.groups=2", "method.features=activations"],
    "evenkeel at full trust": ["method.name=evenkeel", "method.trust=1", "method.step=1", "method.decay=0.9"],
    "ca2fl at once": ["method.name=ca2fl", "method.refresh=immediate", "method.buffer=1", "method.server_lr=9.0"],
}
NAN, INF = float("nan"), float("inf")
SAMPLES = [10, 0, 1, 55, 10**9, 2**53, 2**70, -3]
COSTS = [1.0, 0.0, -5.0, NAN, INF, -INF, 1e308]
LOSSES = [None, 0.5, NAN, INF, -1e300, 1e300]
NORMS = [0.1, 1.0, 1e14, -1e14, 4e14, 1e38, -1e38, 0.0, NAN, INF, 1e-40]
COUNTS = [1, 5, 40, 0, -1, 2**53, 10**30]
REASONS: list[LossReason] = ["crash", "left", "timeout", "rejected", "stale"]
CHANGES: list[tuple[str, Any]] = [
    ("run.wall_time", 500.0),
    ("run.wall_time", None),
    ("run.evaluate_every", 3.0),
    ("run.evaluate_every", 40.0),
    ("run.evaluate_versions", 2),
    ("run.evaluate_versions", None),
    ("run.slot_timeout", 2.0),
    ("run.slot_timeout", "auto"),
    ("run.slot_timeout", None),
    ("run.max_staleness", 1),
    ("run.max_dispatches", 9),
    ("run.max_dispatches", None),
    ("run.defence.update_clip", 0.5),
    ("run.defence.update_clip", None),
    ("run.defence.feature_clip", 1.0),
    ("run.defence.sample_quantile", 0.5),
    ("run.defence.sample_factor", 1.0),
    ("deploy.norm_bound", 3.0),
    ("deploy.norm_bound", None),
]


def make(name: str) -> Method:
    return make_method(load_experiment(None, VARIANTS[name]))


def engine_for(name: str, slots: int, rules: DefenceRules, timeout: Any, events: list[Event]) -> WallEngine:
    setup = EngineSetup(
        method=make(name),
        executor=LazyExecutor(1, [], lambda job: Score(((0.0,),), 0.0, 1)),
        initial=INITIAL,
        emit=events.append,
        seed=4,
        slots=slots,
        limits=Limits(seconds=10_000.0, evaluate_every=20.0, slot_timeout=timeout),
        trainable=TRAINABLE,
        defence=rules,
        average=AverageRule("polynomial"),
    )
    return WallEngine(setup, DEVICES)


class Chaos:
    """Turns small numbers into inputs that fit the engine's state, or do not."""

    def __init__(self, engine: WallEngine) -> None:
        self.engine = engine
        self.time = 0.0

    def input(self, kind: int, pick: int, value: int, wait: float) -> Input:
        self.time += wait
        device = pick % DEVICES
        if kind < 5:
            return self.arrival(pick, value)
        if kind < 8:
            return Joined(self.time, device, SAMPLES[value % len(SAMPLES)])
        if kind == 8:
            return Left(self.time, device)
        if kind == 9:
            return Failed(self.time, self.job(pick), REASONS[value % len(REASONS)])
        if kind < 12 and self.engine.question is not None:
            return self.features(pick, value)
        if kind == 12:
            return Changed(self.time, *CHANGES[value % len(CHANGES)])
        if kind >= 14:
            return Held(self.time, self.job(pick), COSTS[value % len(COSTS)], COSTS[pick % len(COSTS)])
        if kind == 13 and value > 90:
            return Stopping(self.time, at_once=pick % 2 == 0)
        return Passed(self.time)

    def job(self, pick: int) -> int:
        """Mostly one in flight, sometimes an old one or one that never was."""
        flights = [*self.engine.flights]
        return flights[pick % len(flights)] if flights and pick % 5 else pick

    def arrival(self, pick: int, value: int) -> Arrived:
        number = self.job(pick)
        flight = self.engine.flights.get(number)
        sent = INITIAL if flight is None else flight.weights
        return Arrived(
            self.time,
            number,
            upload(sent, pick, value),
            COSTS[value % len(COSTS)],
            COSTS[pick % len(COSTS)],
            LOSSES[(pick + value) % len(LOSSES)],
            LOSSES[(3 * pick + value) % len(LOSSES)],
            COUNTS[(pick + value) % len(COUNTS)],
            COUNTS[(pick + 2 * value) % len(COUNTS)],
        )

    def features(self, pick: int, value: int) -> Gathered:
        rows = np.random.default_rng(value).normal(0, 1, (DEVICES, WIDTH)).astype(np.float32)
        for device in range(DEVICES):
            if (pick >> device) & 1:
                rows[device] = np.float32(NORMS[(value + device) % len(NORMS)])
        return Gathered(self.time, rows, np.array([(value >> d) & 1 == 0 for d in range(DEVICES)]))


def upload(sent: Weights, pick: int, value: int) -> Weights:
    number = NORMS[value % len(NORMS)]
    if value % 3 == 0:
        return (sent + np.float32(0.1) * np.float32(pick % 3 - 1)).astype(np.float32)
    if value % 17 == 1:
        return np.zeros(sent.size + 1, dtype=np.float32)
    made = sent.copy()
    with np.errstate(all="ignore"):
        made[pick % 2 :: 1 + pick % 3] = np.float32(number)
    return made


def check(engine: WallEngine, events: list[Event]) -> None:
    assert np.isfinite(engine.model).all()
    assert np.isfinite(engine.result).all()
    ledger = engine.ledger
    assert np.isfinite([ledger.joules, ledger.mean_staleness or 0.0]).all()
    for event in events:
        line = event.line()
        assert "NaN" not in line, line
        assert "Infinity" not in line, line
    for flight in engine.flights.values():
        assert np.isfinite(flight.weights).all()
        assert flight.device not in engine.idle
        assert engine.flight_of(flight.device) is flight
    for device in engine.idle:
        assert device in engine.present
        assert 0 < engine.sizes[device] <= 10**9
    events.clear()


ACTIONS = st.lists(
    st.tuples(
        st.integers(0, 15), st.integers(0, 127), st.integers(0, 100), st.sampled_from([0.0, 0.1, 1.0, 7.0, 90.0])
    ),
    min_size=5,
    max_size=120,
)
RULES = st.builds(
    DefenceRules,
    update_clip=st.sampled_from([None, 0.5, 3.0]),
    feature_clip=st.sampled_from([None, 2.0]),
    sample_quantile=st.sampled_from([None, 0.5, 1.0]),
)


@pytest.mark.parametrize("name", VARIANTS)
@settings(deadline=None, max_examples=EXAMPLES)
@given(
    actions=ACTIONS,
    rules=RULES,
    timeout=st.sampled_from([None, "auto", 5.0]),
    slots=st.integers(1, 4),
    first=st.integers(0, 7),
)
def test_any_order_of_inputs(
    name: str, actions: list[tuple[int, int, int, float]], rules: DefenceRules, timeout: Any, slots: int, first: int
) -> None:
    events: list[Event] = []
    engine = engine_for(name, slots, rules, timeout, events)
    chaos = Chaos(engine)
    for device in range(first):
        engine.handle(Joined(0.0, device, SAMPLES[(device * 3) % len(SAMPLES)] if first > 4 else 20 + device))
    engine.handle(Started(0.0))
    for action in actions:
        if engine.over:
            break
        engine.handle(chaos.input(*action))
        engine.take_orders()
        check(engine, events)
    engine.conclude()
    check(engine, events)


def begin(engine: WallEngine, devices: int) -> None:
    """What happens before anything else."""
    for device in range(devices):
        engine.handle(Joined(0.0, device, 20 + device))
    engine.handle(Started(0.0))
    if engine.question is not None:
        engine.handle(Gathered(0.0, np.ones((DEVICES, WIDTH), dtype=np.float32), np.ones(DEVICES, dtype=bool)))
    engine.take_orders()


@pytest.mark.parametrize("name", VARIANTS)
@settings(deadline=None, max_examples=EXAMPLES)
@given(
    actions=ACTIONS,
    rules=RULES,
    timeout=st.sampled_from([None, "auto", 5.0]),
    slots=st.integers(1, 4),
    cut=st.integers(0, 120),
)
def test_a_server_killed_in_any_state_continues(
    name: str, actions: list[tuple[int, int, int, float]], rules: DefenceRules, timeout: Any, slots: int, cut: int
) -> None:
    """A checkpoint after some inputs and the journal of the rest lead to the same events, orders and state."""
    events: list[Event] = []
    whole = engine_for(name, slots, rules, timeout, events)
    begin(whole, 6)
    chaos, inputs, orders, lines = Chaos(whole), [], [], []
    middle, tree, arrays = 0, None, {}
    for number, action in enumerate(actions):
        if whole.over:
            break
        if number == cut % len(actions):
            encoder = Encoder()
            tree, middle = encoder.encode(whole.state()), number
            arrays = {key: np.array(array) for key, array in encoder.arrays.items()}
        inputs.append(chaos.input(*action))
        events.clear()
        whole.handle(inputs[-1])
        orders.append(whole.take_orders())
        lines.append([repr(event) for event in events])
    if tree is None:
        return  # the run was over before
    again: list[Event] = []
    other = engine_for(name, slots, rules, timeout, again)
    other.restore(Decoder(arrays).decode(tree))
    for number, given_input in enumerate(inputs[middle:], start=middle):
        again.clear()
        other.handle(given_input)
        assert other.take_orders() == orders[number]
        assert [repr(event) for event in again] == lines[number]
    ends = [Encoder(), Encoder()]
    assert ends[0].encode(other.state()) == ends[1].encode(whole.state())
    for key, array in ends[0].arrays.items():
        np.testing.assert_array_equal(array, ends[1].arrays[key])


class Honest:
    """Devices that answer every order after a second."""

    def __init__(self, engine: WallEngine, time: float) -> None:
        self.engine, self.time = engine, time

    def second(self) -> None:
        """Passes a second, and answers what was ordered before it."""
        orders = self.engine.take_orders()
        self.time += 1.0
        for job in orders.jobs:
            flight = self.engine.flights.get(job)
            if flight is not None and flight.objective.hold:
                self.engine.handle(Held(self.time, job, 1.0, 1.0))
            elif flight is not None:
                self.upload(job)
        for job in orders.fetched:
            self.upload(job)
        for job, _ in orders.cancelled:
            self.engine.handle(Failed(self.time, job, "crash"))
        if orders.ask:
            rows = np.ones((DEVICES, WIDTH), dtype=np.float32)
            self.engine.handle(Gathered(self.time, rows, np.ones(DEVICES, dtype=bool)))
        self.engine.handle(Passed(self.time))

    def upload(self, job: int) -> None:
        flight = self.engine.flights.get(job)
        if flight is not None:
            noise = np.random.default_rng(job).normal(0, 0.01, flight.weights.size).astype(np.float32)
            self.engine.handle(Arrived(self.time, job, flight.weights + noise, 1.0, 1.0, 0.5, 0.5, 3, None))


@pytest.mark.parametrize("name", VARIANTS)
def test_no_run_stalls_for_ever(name: str) -> None:
    """Whatever devices did before: once all of them are back and honest, models are published again."""
    for seed in range(3):
        draw, events = np.random.default_rng(seed), []  # type: ignore[var-annotated]
        timeout, slots = [None, "auto", 5.0][seed % 3], int(draw.integers(1, 9))
        engine = engine_for(name, slots, DefenceRules(update_clip=3.0), timeout, events)
        begin(engine, 6)
        chaos = Chaos(engine)
        for _ in range(60):
            kind = int(draw.choice([0, 1, 2, 3, 5, 8, 9, 10, 13, 14, 15]))
            engine.handle(
                chaos.input(kind, int(draw.integers(128)), int(draw.integers(90)), float(draw.choice([0, 1])))
            )
        for device in range(DEVICES):
            engine.handle(Joined(chaos.time, device, 20))
        honest, before = Honest(engine, chaos.time), engine.version
        if engine.question is not None:
            engine._ask = True  # its answers are still to come
        for _ in range(400):  # devices that failed again and again rest for minutes
            honest.second()
            if seed and engine.version > before + 20:
                break  # one long run shows that nothing piles up
        assert engine.version > before + 20, (seed, slots)
        assert len(engine.jobs.pending) + len(engine.jobs.held) <= max(slots, DEVICES if "all" in name else 0)


@pytest.mark.parametrize("name", VARIANTS)
def test_devices_that_lose_their_samples_while_their_uploads_wait(name: str) -> None:
    """One upload of four is in, then every device says that it has no samples any more, and the round ends by time."""
    events: list[Event] = []
    engine = engine_for(name, 4, DefenceRules(), None, events)
    for device in range(4):
        engine.handle(Joined(0.0, device, 10 + device))
    engine.handle(Started(0.0))
    if engine.question is not None:
        engine.handle(Gathered(0.5, np.ones((DEVICES, WIDTH), dtype=np.float32), np.ones(DEVICES, dtype=bool)))
    flight = engine.flight_of(0)
    assert flight is not None
    if flight.objective.hold:
        engine.handle(Held(0.8, flight.number, 1.0, 1.0))
    engine.handle(Arrived(1.0, flight.number, flight.weights + np.float32(0.5), 1.0, 1.0))
    for device in range(4):
        engine.handle(Joined(2.0, device, 0))
    for time in (5.0, 10.0, 15.0):
        engine.handle(Passed(time))
        check(engine, events)
    assert not len(engine.idle)
    engine.handle(Joined(16.0, 0, 5))
    engine.handle(Passed(30.0))  # some methods act at ticks
    assert engine.flights
    check(engine, events)
