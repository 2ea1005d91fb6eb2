"""Corrections, jobs that finish early and results that are held, on the wall clock: inputs, orders, claims, replay."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.core import EngineSetup, Limits
from cabafl.engine.inputs import Arrived, Failed, Held, Input, Joined, Left, Passed, Started, Stopping
from cabafl.engine.wall import WallEngine
from cabafl.execution.inline import LazyExecutor
from cabafl.learning.evaluation import Score
from cabafl.methods.base import Objective
from cabafl.recording.events import Event, Lost, Noted
from cabafl.state import Decoder, Encoder
from tests.engine.orders_method import Told
from tests.scripted import vector

HOLD = Objective(epochs=4, hold=True)
INITIAL = vector(1, 2)


def made(method: Told, events: list[Event], slots: int = 2, **limits: Any) -> WallEngine:
    """An engine whose devices have not joined."""
    setup = EngineSetup(
        method=method,
        executor=LazyExecutor(1, [], lambda job: Score(((0.0,),), 0.0, 1)),
        initial=INITIAL,
        emit=events.append,
        seed=1,
        slots=slots,
        limits=Limits(**{"seconds": 1000.0, "evaluate_every": 500.0, **limits}),
        trainable=2,
        epochs=4,
    )
    return WallEngine(setup, 3)


def begun(method: Told, slots: int = 2, **limits: Any) -> tuple[WallEngine, list[Event]]:
    """An engine with its first jobs sent."""
    events: list[Event] = []
    engine = made(method, events, slots, **limits)
    for device in range(slots):
        engine.handle(Joined(0.0, device, 10 + device))
    engine.handle(Started(0.0))
    engine.take_orders()
    return engine, events


def upload(time: float, job: int, steps: int = 12, epochs: int | None = 4, **more: Any) -> Arrived:
    return Arrived(time, job, INITIAL + 1, 3.0, 4.0, steps=steps, epochs=epochs, **more)


def notes(events: list[Event], kind: str) -> list[dict[str, Any]]:
    return [event.facts for event in events if isinstance(event, Noted) and event.kind == kind]


# Finish


def test_an_order_to_finish_is_passed_on_once_and_the_device_says_what_it_did() -> None:
    method = Told(orders=[(5.0, "finish 0"), (6.0, "finish 0")])
    engine, events = begun(method)
    engine.handle(Passed(7.0))
    assert engine.take_orders().finished == [0]
    assert engine.take_orders().finished == []
    assert notes(events, "finish") == [{"job": 0, "device": 0}]
    engine.handle(upload(8.0, 0, steps=6, epochs=2))
    assert method.uploads == [(0, 6, 2, 8.0)]


def test_there_is_no_order_for_a_job_that_has_ended_since() -> None:
    engine, _ = begun(Told(orders=[(5.0, "finish 0"), (5.0, "cancel 0")]))
    engine.handle(Passed(6.0))
    orders = engine.take_orders()
    assert (orders.finished, orders.cancelled) == ([], [(0, 0)])


@pytest.mark.parametrize(
    ("claim", "heard", "refused"),
    [
        ({"steps": 0}, (1, 4), ["steps"]),
        ({"steps": 10**10}, (1, 4), ["steps"]),
        ({"epochs": 0}, (12, 4), ["epochs"]),
        ({"epochs": 5}, (12, 4), ["epochs"]),
        ({"epochs": None}, (12, 4), []),
        ({"epochs": 1, "steps": 1}, (1, 1), []),
        ({"square_loss": float("nan")}, (12, 4), ["square loss"]),
        ({"square_loss": -1.0}, (12, 4), ["square loss"]),
    ],
)
def test_claims_have_bounds(claim: dict[str, Any], heard: tuple[int, int], refused: list[str]) -> None:
    method = Told()
    engine, events = begun(method)
    engine.handle(upload(8.0, 0, **claim))
    assert method.uploads[0][1:3] == heard
    assert [note["what"] for note in notes(events, "refuse")] == refused


# Held results


def test_a_held_result_is_fetched() -> None:
    method = Told(HOLD, [(20.0, "fetch 0")])
    engine, events = begun(method)
    engine.handle(Held(9.0, 0, 7.5, 40.0))
    assert method.heard == ["ready 0"]
    assert engine.ledger.joules == 40.0
    assert 0 not in engine.idle
    engine.handle(Held(9.5, 0, 7.5, 40.0))  # again
    engine.handle(Passed(20.0))
    assert engine.take_orders().fetched == [0]
    engine.handle(upload(21.0, 0))
    assert method.heard == ["ready 0", "upload 0"]
    assert method.uploads == [(0, 12, 4, 21.0)]
    assert engine.ledger.joules == 40.0, "its costs were counted when it was ready"
    assert notes(events, "answer") == [{"job": 0, "seconds": 7.5, "joules": 40.0}]
    assert (engine.ledger.uploads, engine.ledger.bytes) == (1, 3 * 8)
    assert engine.durations.votes[0] == 9.0, "not the time for which it was held"
    assert 0 in engine.idle


def test_a_held_result_is_cancelled() -> None:
    method = Told(HOLD, [(20.0, "cancel 0")])
    engine, events = begun(method)
    engine.handle(Held(9.0, 0, 7.5, 40.0))
    engine.handle(Passed(20.0))
    assert engine.take_orders().cancelled == [(0, 0)]
    assert [event.reason for event in events if isinstance(event, Lost)] == ["cancelled"]
    engine.handle(upload(21.0, 0))
    assert (engine.ledger.uploads, engine.ledger.bytes, method.heard) == (0, 2 * 8, ["ready 0"])
    assert 0 in engine.idle


def test_a_device_disconnects_while_it_holds_a_result() -> None:
    method = Told(HOLD, [(20.0, "fetch 0"), (20.0, "fetch 1")])
    engine, _ = begun(method)
    for job in (0, 1):
        engine.handle(Held(9.0, job, 7.5, 40.0))
    engine.handle(Left(10.0, 0))
    engine.handle(Passed(20.0))
    assert engine.take_orders().fetched == [1]
    engine.handle(Left(20.5, 1))
    engine.handle(Joined(30.0, 0, 10))
    engine.handle(Joined(30.0, 1, 10))
    assert method.heard == ["ready 0", "ready 1", "left 0", "left 1", "idle 0", "idle 1"]
    engine.handle(upload(31.0, 0))
    assert engine.ledger.uploads == 0
    assert not engine.flights


@pytest.mark.parametrize("ready", [False, True])
def test_a_result_that_was_not_asked_for_is_rejected(ready: bool) -> None:
    method = Told(HOLD)
    engine, _ = begun(method)
    if ready:
        engine.handle(Held(9.0, 0, 7.5, 40.0))
    engine.handle(upload(10.0, 0))
    assert method.heard[-1] == "rejected 0"
    assert not method.uploads


def test_a_device_that_holds_what_it_should_upload_fails() -> None:
    method = Told()
    engine, _ = begun(method)
    engine.handle(Held(9.0, 0, 7.5, 40.0))
    assert method.heard == ["rejected 0"]
    assert engine.ledger.joules == 0.0


def test_the_timeout_stands_still_while_a_result_is_held() -> None:
    method = Told(HOLD, [(50.0, "fetch 0")])
    engine, _ = begun(method, slot_timeout=10.0)
    engine.handle(Held(9.0, 0, 7.5, 40.0))
    engine.handle(Passed(49.0))
    assert method.heard == ["ready 0", "timeout 1"]
    engine.handle(Passed(59.5))
    assert method.heard == ["ready 0", "timeout 1"]
    engine.handle(Passed(60.0))
    assert method.heard == ["ready 0", "timeout 1", "timeout 0"]
    assert engine.take_orders().cancelled == [(1, 1), (0, 0)]
    engine.handle(Held(61.0, 1, 7.5, 40.0))  # late: the device is free, and drops what it holds
    engine.handle(Failed(62.0, 0, "crash"))
    assert method.heard[-2:] == ["idle 1", "idle 0"]
    assert engine.take_orders().cancelled == [(1, 1)]
    assert not engine.flights


def test_a_first_upload_that_never_comes_is_given_up() -> None:
    """The times of the trainings are known, although nothing has been uploaded."""
    method = Told(HOLD, [(20.0, "fetch 0")])
    engine, _ = begun(method, slot_timeout="auto")
    for job in (0, 1):
        engine.handle(Held(9.0, job, 7.5, 40.0))
    engine.handle(Passed(64.0))
    assert method.heard == ["ready 0", "ready 1"]
    engine.handle(Passed(65.0))
    assert method.heard == ["ready 0", "ready 1", "timeout 0"], "after five times the usual 9 s"


def test_a_run_that_stops_waits_for_held_results_unless_it_stops_at_once() -> None:
    for at_once in (False, True):
        engine, _ = begun(Told(HOLD, [(20.0, "fetch 0")]), slots=1)
        engine.handle(Held(9.0, 0, 7.5, 40.0))
        engine.handle(Stopping(10.0, at_once))
        assert engine.over == at_once
        engine.handle(Passed(20.0))
        assert engine.take_orders().cancelled == ([(0, 0)] if at_once else [])
        if not at_once:
            engine.handle(upload(21.0, 0))
            assert engine.over


# Corrections


def test_a_correction_is_one_more_download() -> None:
    engine, _ = begun(Told(correction=vector(3, 4)))
    assert (engine.ledger.downloads, engine.ledger.bytes) == (4, 4 * 8)
    assert all(flight.correction is not None for flight in engine.flights.values())


# Replay

INPUTS: list[Input] = [
    Joined(0.0, 0, 10),
    Joined(0.0, 1, 11),
    Joined(0.0, 2, 12),
    Started(0.0),
    Passed(4.0),
    Held(9.0, 0, 7.5, 40.0),
    Held(9.5, 2, 7.5, 40.0),
    Left(9.7, 1),
    Passed(12.0),
    Joined(12.5, 1, 11),
    upload(13.0, 2, steps=3, epochs=1),
    Passed(40.0),
    upload(41.0, 0),
    Passed(50.0),
]


@pytest.mark.parametrize("cut", range(4, len(INPUTS)))
def test_a_server_continues_from_any_moment(cut: int) -> None:
    """The state after some inputs, and the rest of the journal: the same events, orders and answers."""
    orders = [(3.0, "finish 2"), (12.0, "fetch 2"), (12.0, "fetch 0")]

    def told() -> Told:
        return Told(HOLD, orders, vector(1, 1))

    events: list[Event] = []
    whole = made(told(), events, slots=3, slot_timeout=25.0)
    for given in INPUTS:
        whole.handle(given)
    first: list[Event] = []
    engine = made(told(), first, slots=3, slot_timeout=25.0)
    for given in INPUTS[:cut]:
        engine.handle(given)
    encoder = Encoder()
    tree = encoder.encode(engine.state())
    second: list[Event] = []
    other = made(told(), second, slots=3, slot_timeout=25.0)
    other.restore(Decoder({name: np.array(a) for name, a in encoder.arrays.items()}).decode(tree))
    for given in INPUTS[cut:]:
        other.handle(given)
    assert [*map(repr, first), *map(repr, second)] == [*map(repr, events)]
    assert vars(other.method) == vars(whole.method) | {"correction": vars(other.method)["correction"]}
    assert (other.jobs.pending, other.jobs.held) == (whole.jobs.pending, whole.jobs.held)
