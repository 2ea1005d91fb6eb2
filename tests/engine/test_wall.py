"""The engine on the wall clock, without a network: it decides like the simulator and loses nothing."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabafl.engine.core import EngineSetup, Limits
from cabafl.engine.defence import DefenceRules
from cabafl.engine.inputs import Arrived, Failed, Gathered, Held, Input, Joined, Left, Passed, Started
from cabafl.engine.virtual import VirtualEngine
from cabafl.learning.task import TrainingResult
from cabafl.recording.events import Collection, Dispatched, Event, Lost, Noted, Published
from cabafl.state import Decoder, Encoder
from tests.fleet_play import (
    CABAFL_AUTO,
    DEVICES,
    FEATURES,
    INITIAL,
    SECONDS,
    SIZES,
    SLOTS,
    UNDEFENDED,
    Play,
    method_named,
    trained,
    wall_engine,
)
from tests.runs import ALL_METHODS
from tests.scripted import ScriptedExecutor, timetable, vector


def decisions(events: list[Event]) -> list[tuple[Any, ...]]:
    """What the method decided, without the clock."""
    sent = [("dispatch", e.job, e.device, e.slot, e.version) for e in events if isinstance(e, Dispatched)]
    tuned = [("auto", repr(e.facts)) for e in events if isinstance(e, Noted) and e.kind == "auto"]
    return [*sent, *tuned, *[("publish", e.version, repr(e.facts)) for e in events if isinstance(e, Published)]]


def result(given: Arrived) -> TrainingResult:
    return TrainingResult(given.weights, given.loss, given.square_loss, given.steps, given.epochs or 1)


def simulated(name: str, inputs: list[Input], events: list[Event]) -> list[Event]:
    """The simulator with the device times and uploads of a deployed run."""
    arrived = {given.job: given for given in inputs if isinstance(given, Arrived)}
    ended = {given.job: given.time for given in reversed(inputs) if isinstance(given, Arrived | Held)}  # the training
    sent = [e for e in events if isinstance(e, Dispatched)]
    times: dict[int, list[float]] = {device: [] for device in range(DEVICES)}
    for event in sent:
        times[event.device].append(ended[event.job] - event.time if event.job in ended else 1e6)
    devices = timetable(times, SIZES)
    collections = [given.time for given in inputs if isinstance(given, Gathered)]
    starts = [e.time for e in events if isinstance(e, Collection) and e.step == "start"]
    waits = [end - start for start, end in zip(starts, [*collections, 1e6], strict=False)]
    offset = waits.pop(0) if waits else 0.0  # the first collection of a simulation takes no time

    def collection_seconds() -> npt.NDArray[np.float64]:
        return np.full(DEVICES, waits.pop(0))

    object.__setattr__(devices, "collection_seconds", collection_seconds)
    made: list[Event] = []
    setup = EngineSetup(
        method=method_named(name),
        executor=ScriptedExecutor(lambda job: result(arrived[job.number]), FEATURES),
        initial=INITIAL,
        emit=made.append,
        seed=4,
        slots=SLOTS,
        limits=Limits(seconds=SECONDS - offset, evaluate_every=7.0),
        trainable=INITIAL.size,
    )
    engine = VirtualEngine(setup, devices)
    engine.run()
    return made


@pytest.mark.parametrize("name", [*ALL_METHODS, CABAFL_AUTO])
def test_the_simulator_takes_the_decisions_of_a_deployed_run(name: str) -> None:
    events: list[Event] = []
    inputs = Play(wall_engine(name, events.append), seed=5).run()
    again = simulated(name, inputs, events)
    assert sum(isinstance(e, Published) for e in events) > 3
    assert decisions(again) == decisions(events)


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(["cabafl", CABAFL_AUTO]),
    st.integers(0, 10_000),
    st.integers(1, 60),
    st.sampled_from([UNDEFENDED, DefenceRules(0.8, 1.0, 0.5, 1.0)]),
)
def test_a_killed_server_comes_back_through_its_journal(name: str, seed: int, cut: int, rules: DefenceRules) -> None:
    """Stores the state after some inputs and handles the rest in a new engine: the same events as without a stop."""
    events: list[Event] = []
    whole = wall_engine(name, events.append, rules)
    inputs = Play(whole, seed).run()
    first: list[Event] = []
    engine = wall_engine(name, first.append, rules)
    for given_input in inputs[:cut]:
        engine.handle(given_input)
    encoder = Encoder()
    if not engine.started:
        return  # nothing to store yet
    tree = encoder.encode(engine.state())
    second: list[Event] = []
    other = wall_engine(name, second.append, rules)
    other.restore(Decoder({name: np.array(a) for name, a in encoder.arrays.items()}).decode(tree))
    for given_input in inputs[cut:]:
        other.handle(given_input)
    other.handle(Passed(SECONDS))
    other.conclude()
    assert [*map(repr, first), *map(repr, second)] == [*map(repr, events)]
    assert other.defence.counts == whole.defence.counts
    assert bool(whole.defence.counts) == (rules is not UNDEFENDED)


def test_late_double_and_foreign_answers_are_not_counted() -> None:
    events: list[Event] = []
    engine = wall_engine("fedasync", events.append)
    for device in range(DEVICES):
        engine.handle(Joined(0.0, device, SIZES[device]))
    engine.handle(Started(0.0))
    answer = Arrived(1.0, 0, trained(0, INITIAL), 1.0, 2.0)
    for _ in range(3):
        engine.handle(answer)
    engine.handle(Arrived(1.0, 999, INITIAL, 1.0, 2.0))
    assert engine.ledger.uploads == 1
    assert engine.version == 1
    engine.handle(Failed(2.0, 1, "crash"))
    engine.handle(Arrived(2.5, 1, INITIAL, 1.0, 2.0))
    assert engine.ledger.uploads == 1
    assert engine.ledger.losses == {"crash": 1}
    assert len(engine.flights) == SLOTS


def test_devices_join_leave_and_come_back() -> None:
    events: list[Event] = []
    engine = wall_engine("fedasync", events.append)
    engine.handle(Joined(0.0, 0, 10))
    engine.handle(Started(0.0))
    assert len(engine.flights) == 1  # one device, three slots
    engine.handle(Joined(1.0, 1, 20))
    engine.handle(Joined(1.0, 2, 20))
    assert len(engine.flights) == 3
    engine.handle(Left(2.0, 1))
    assert [e.reason for e in events if isinstance(e, Lost)] == ["left"]
    engine.handle(Joined(3.0, 1, 20))
    assert len(engine.flights) == 3
    engine.handle(Joined(4.0, 2, 25))  # its process restarted unnoticed: its job is lost
    assert [e.reason for e in events if isinstance(e, Lost)] == ["left", "crash"]
    assert len(engine.flights) == 3
    assert engine.sizes.tolist()[:3] == [10, 20, 25]


def test_rejected_uploads_and_timeouts_follow_the_shared_rules() -> None:
    events: list[Event] = []
    engine = wall_engine("fedasync", events.append, slot_timeout=5.0)
    engine.norm_bound = 1.0
    for device in range(4):
        engine.handle(Joined(0.0, device, 10))
    engine.handle(Started(0.0))
    engine.handle(Arrived(1.0, 0, np.full(4, np.nan, dtype=np.float32), 1.0, 0.0))
    engine.handle(Arrived(1.0, 1, vector(1, 2), 1.0, 0.0))
    engine.handle(Arrived(1.0, 2, INITIAL + 1, 1.0, 0.0))  # moved by 2
    assert [e.reason for e in events if isinstance(e, Lost)] == ["rejected"] * 3
    engine.handle(Passed(6.5))
    assert [e.reason for e in events if isinstance(e, Lost)][3:] == ["timeout"] * 3
    assert engine.ledger.uploads == 3
    late = next(number for number, flight in engine.flights.items() if flight.abandoned)
    engine.handle(Arrived(7.0, late, INITIAL, 1.0, 0.0))
    assert engine.version == 0  # a late answer is not an upload, but makes its device idle
    assert len([f for f in engine.flights.values() if not f.abandoned]) >= 1
