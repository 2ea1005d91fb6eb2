"""The operator's hand on a running server: changes, stops, timeouts that set themselves, orders to stop a job."""

from typing import Any

import numpy as np
import pytest

from cabafl.config import Experiment, load_experiment
from cabafl.engine.changes import CHANGEABLE, Change, changed, parse_change
from cabafl.engine.inputs import Arrived, Changed, Failed, Gathered, Joined, Left, Operated, Passed, Started, Stopping
from cabafl.engine.wall import WallEngine
from cabafl.errors import UserError
from cabafl.recording.events import Evaluated, Event, Lost, Noted
from cabafl.state import Decoder, Encoder
from tests.fleet_play import DEVICES, FEATURES, INITIAL, SIZES, SLOTS, trained, wall_engine

DEPLOYED = load_experiment(None, ["run.wall_time=600"])


def begun(name: str, events: list[Event], **limits: Any) -> WallEngine:
    engine = wall_engine(name, events.append, **limits)
    for device in range(DEVICES):
        engine.handle(Joined(0.0, device, SIZES[device]))
    engine.handle(Started(0.0))
    return engine


def answer(engine: WallEngine, job: int, time: float) -> None:
    engine.handle(Arrived(time, job, trained(job, engine.flights[job].weights), 1.0, 2.0))


def through_checkpoint(engine: WallEngine, name: str, events: list[Event]) -> WallEngine:
    encoder = Encoder()
    tree = encoder.encode(engine.state())
    again = wall_engine(name, events.append)
    again.restore(Decoder({key: np.array(a) for key, a in encoder.arrays.items()}).decode(tree))
    return again


# Which settings may change


def test_a_change_is_checked_like_the_experiment_file() -> None:
    assert parse_change("run.wall_time=900", DEPLOYED) == Change("run.wall_time", 900.0)
    assert parse_change("run.slot_timeout=none", DEPLOYED) == Change("run.slot_timeout", None)
    assert parse_change("run.slot_timeout=auto", DEPLOYED) == Change("run.slot_timeout", "auto")
    assert parse_change("run.defence.update_clip = 2", DEPLOYED) == Change("run.defence.update_clip", 2.0)
    assert parse_change("deploy.norm_bound=5.5", DEPLOYED) == Change("deploy.norm_bound", 5.5)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("training.epochs=3", r"cannot change in a running experiment; accepted: KEY=VALUE with run.wall_time, "),
        ("run.wal_time=3", "did you mean 'run.wall_time'"),
        ("run.wall_time", "not a setting; accepted: section.key=value"),
        ("run.wall_time=-1", "run.wall_time = -1: input should be greater than 0"),
        ("run.wall_time=none", "the run would not end; accepted: run.wall_time or run.max_dispatches"),
        ("run.evaluate_every=none", "run.evaluate_every = None"),
        ("run.slot_timeout=soon", "run.slot_timeout = 'soon': accepted: 'auto', 'none' or a number above 0"),
        ("run.defence.sample_quantile=2", "run.defence.sample_quantile = 2: accepted: 'auto', 'none' or a number"),
    ],
)
def test_a_wrong_change_is_one_line_that_says_what_is_accepted(text: str, line: str) -> None:
    with pytest.raises(UserError, match=line) as caught:
        parse_change(text, DEPLOYED)
    assert "\n" not in str(caught.value)


def test_earlier_changes_count() -> None:
    earlier = {"run.max_dispatches": 10}
    assert parse_change("run.wall_time=none", DEPLOYED, earlier) == Change("run.wall_time", None)
    assert changed(DEPLOYED, earlier).run.max_dispatches == 10
    assert changed(DEPLOYED, {}) is DEPLOYED


def test_every_key_that_may_change_exists_and_the_engine_takes_it() -> None:
    engine = begun("fedasync", [])
    for key in CHANGEABLE:
        value = parse_change(f"{key}=1", DEPLOYED).value
        engine.handle(Changed(1.0, key, value))
        assert engine.changes[key] == value
    assert engine.limits.seconds == 1.0
    assert engine.limits.evaluate_versions == 1
    assert engine.norm_bound == 1.0
    assert engine.defence.sample_quantile == 1.0
    assert isinstance(DEPLOYED, Experiment)


# What changes do


def times(events: list[Event]) -> list[float]:
    return [event.time for event in events if isinstance(event, Evaluated)]


def test_a_new_interval_moves_the_next_evaluation() -> None:
    events: list[Event] = []
    engine = begun("fedasync", events)
    engine.handle(Passed(15.0))
    assert times(events) == [0.0, 7.0, 14.0]
    engine.handle(Changed(15.0, "run.evaluate_every", 4.0))
    assert engine.next_alarm() == 16.0
    engine.handle(Passed(21.0))
    engine.handle(Changed(22.0, "run.evaluate_every", 50.0))
    engine.handle(Passed(59.0))
    assert times(events) == [0.0, 7.0, 14.0, 16.0, 20.0, 50.0]


def test_evaluations_change_between_times_and_versions() -> None:
    events: list[Event] = []
    engine = begun("fedasync", events)
    engine.handle(Changed(1.0, "run.evaluate_versions", 1))
    engine.handle(Passed(30.0))
    answer(engine, 0, 31.0)
    assert times(events) == [0.0, 31.0]
    engine.handle(Changed(32.0, "run.evaluate_versions", None))
    engine.handle(Passed(36.0))
    assert times(events) == [0.0, 31.0, 35.0]


def test_a_longer_run_goes_on_with_its_timers() -> None:
    events: list[Event] = []
    engine = begun("fedasync", events)
    engine.handle(Passed(60.0))
    assert engine.over
    engine.handle(Changed(60.0, "run.wall_time", 80.0))
    assert not engine.over
    engine.handle(Passed(75.0))
    assert times(events)[-2:] == [63.0, 70.0]
    engine.handle(Passed(80.0))
    assert engine.over


def test_limits_of_dispatches_and_staleness_change() -> None:
    events: list[Event] = []
    engine = begun("fedasync", events)
    engine.handle(Changed(1.0, "run.max_dispatches", SLOTS))
    answer(engine, 0, 2.0)
    assert len(engine.flights) == SLOTS - 1
    engine.handle(Changed(3.0, "run.max_staleness", 0))
    answer(engine, 1, 4.0)
    assert engine.ledger.losses == {"stale": 1}
    assert not engine.over
    answer(engine, 2, 4.0)
    assert engine.over
    assert [event.facts["key"] for event in events if isinstance(event, Noted) and event.kind == "change"] == [
        "run.max_dispatches",
        "run.max_staleness",
    ]


def test_changes_survive_a_checkpoint() -> None:
    events: list[Event] = []
    engine = begun("fedasync", events)
    for key, value in (("run.slot_timeout", 9.0), ("run.defence.update_clip", 2.0), ("deploy.norm_bound", 4.0)):
        engine.handle(Changed(1.0, key, value))
    again = through_checkpoint(engine, "fedasync", events)
    assert again.limits == engine.limits
    assert again.limits.slot_timeout == 9.0
    assert again.defence.update_clip == 2.0
    assert again.norm_bound == 4.0
    assert again.changes == engine.changes
    assert again.next_alarm() == engine.next_alarm() == 7.0


# Stops


@pytest.mark.parametrize("name", ["fedasync", "fedavg", "cabafl", "safa", "gitfl"])
def test_a_stop_waits_for_the_jobs_in_flight(name: str) -> None:
    events: list[Event] = []
    engine = begun(name, events)
    if engine.question is not None:
        engine.handle(Gathered(0.5, FEATURES, np.ones(DEVICES, dtype=bool)))
    engine.take_orders()
    engine.handle(Stopping(1.0, at_once=False))
    engine = through_checkpoint(engine, name, events)
    flying = [*engine.flights]
    assert len(flying) == SLOTS
    for job in flying:
        assert not engine.over
        answer(engine, job, 2.0)
    assert engine.over
    assert not engine.flights
    assert engine.take_orders().jobs == []
    engine.handle(Changed(3.0, "run.max_dispatches", None))
    engine.handle(Left(3.0, 0))
    engine.handle(Joined(3.0, 0, 10))
    assert engine.over  # a stop is not undone
    engine.conclude()


def test_what_the_operator_does_outside_is_noted_and_changes_nothing() -> None:
    events: list[Event] = []
    engine = begun("fedasync", events)
    before = (engine.version, len(engine.flights), len(engine.idle))
    engine.handle(Operated(1.0, "export"))
    engine.handle(Operated(2.0, "remove", 3))
    assert [event for event in events if isinstance(event, Noted)][-2:] == [
        Noted(1.0, "operator", {"action": "export"}),
        Noted(2.0, "operator", {"action": "remove", "device": 3}),
    ]
    assert (engine.version, len(engine.flights), len(engine.idle)) == before


def test_a_stop_at_once_recalls_all_jobs() -> None:
    engine = begun("fedasync", [])
    engine.take_orders()
    engine.handle(Stopping(1.0, at_once=True))
    assert engine.over
    assert engine.take_orders().cancelled == [(number, f.device) for number, f in engine.flights.items()]
    assert through_checkpoint(engine, "fedasync", []).over


# Timeouts and cancelled jobs


def test_a_silent_device_does_not_stall_a_round() -> None:
    """FedAvg with slot_timeout = auto: two of three devices answer, the third says nothing."""
    events: list[Event] = []
    engine = begun("fedavg", events, slot_timeout="auto", seconds=1e6)
    assert engine.slot_timeout() is None
    engine.take_orders()
    answer(engine, 0, 10.0)
    assert engine.slot_timeout() is None
    answer(engine, 1, 12.0)
    assert engine.slot_timeout() == 50.0  # five times the lower median, also for the job already in flight
    assert engine.next_alarm() == 14.0  # an evaluation
    engine.handle(Passed(49.9))
    assert engine.version == 0
    silent = engine.flights[2].device
    engine.handle(Passed(50.0))
    assert engine.version == 1
    assert [(e.time, e.job, e.reason) for e in events if isinstance(e, Lost)] == [(50.0, 2, "timeout")]
    orders = engine.take_orders()
    assert orders.cancelled == [(2, silent)]
    assert len(orders.jobs) == SLOTS
    engine.handle(Failed(51.0, 2, "timeout"))  # the device says that it has stopped
    assert silent in engine.idle


def test_the_automatic_timeout_has_a_floor_and_follows_the_median() -> None:
    engine = begun("fedasync", [], slot_timeout="auto", seconds=1e6)
    for job in range(3):
        answer(engine, job, 1.0)
    assert engine.slot_timeout() == 30.0
    for _ in range(12):
        answer(engine, min(engine.flights), engine.now + 20.0)
    median = sorted(engine.durations.votes.values())[(len(engine.durations) - 1) // 2]
    assert engine.slot_timeout() == 5 * median > 30.0


def test_a_cancelled_job_is_an_order_to_the_device() -> None:
    engine = begun("fedasync", [])
    engine.take_orders()
    device = engine.flights[1].device
    engine.cancel(1)
    assert device in engine.idle
    assert engine.flight_of(device) is None
    assert engine.take_orders().cancelled == [(1, device)]
    assert engine.take_orders().cancelled == []


def test_a_device_without_samples_is_never_idle() -> None:
    engine = begun("fedasync", [])
    idle, busy = next(iter(engine.idle)), engine.flights[0].device
    engine.handle(Joined(1.0, idle, 0))
    engine.handle(Joined(1.0, busy, 0))
    engine.handle(Failed(2.0, 0, "crash"))
    assert idle not in engine.idle
    assert busy not in engine.idle
    engine.handle(Joined(3.0, idle, 5))
    assert engine.sizes[idle] == 5


def test_claims_of_devices_are_bounded_when_they_join_and_when_the_run_starts() -> None:
    engine = wall_engine("fedasync", lambda event: None)
    engine.defence.change("sample_quantile", 0.5)
    for device, samples in enumerate([2**53, 10, 12]):
        engine.handle(Joined(0.0, device, samples))
    engine.handle(Started(0.0))
    assert engine.sizes[:3].tolist() == [24, 10, 12]
    engine.handle(Joined(1.0, 3, 10**8))
    assert engine.sizes[3] == 24
    assert engine.defence.totals() == {"samples": 2}
    engine.handle(Changed(2.0, "run.defence.sample_quantile", None))
    assert engine.sizes[:4].tolist() == [10**9, 10, 12, 10**8]


def test_what_a_device_says_about_time_and_energy_is_bounded() -> None:
    events: list[Event] = []
    engine = begun("fedasync", events)
    engine.handle(Arrived(1.0, 0, INITIAL, float("nan"), float("inf"), float("-inf")))
    assert engine.ledger.joules == 0.0
    assert engine.version == 1
    [facts] = [event.facts for event in events if isinstance(event, Noted) and event.kind == "answer"]
    assert facts == {"job": 0, "seconds": 0.0, "joules": 0.0}
    assert engine.defence.totals() == {"refused": 3}
