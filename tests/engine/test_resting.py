"""Devices that fail again and again rest; those that work do not."""

import numpy as np

from cabafl.engine.idle import FIRST_REST, LONGEST_REST, PATIENCE, Resting
from cabafl.engine.inputs import Arrived, Failed, Joined, Passed, Started
from cabafl.recording.events import Dispatched, Event
from cabafl.state import Decoder, Encoder
from tests.fleet_play import DEVICES, SIZES, trained, wall_engine


def test_the_rest_doubles_up_to_its_longest_and_ends_with_work() -> None:
    resting = Resting()
    for number in range(PATIENCE - 1):
        assert resting.fail(7, float(number)) is None
    assert resting.fail(7, 10.0) == 10.0 + FIRST_REST
    assert resting.fail(7, 10.0) == 10.0 + 2 * FIRST_REST
    assert resting.rests(7, 10.0 + FIRST_REST)
    assert not resting.rests(7, 10.0 + 2 * FIRST_REST)
    assert not resting.rests(8, 0.0)
    for _ in range(100):
        until = resting.fail(7, 0.0)
    assert until == LONGEST_REST
    resting.work(7)
    assert not resting.rests(7, 0.0)
    assert resting.fail(7, 0.0) is None


def test_a_device_that_fails_at_once_does_not_take_the_jobs_of_the_others() -> None:
    events: list[Event] = []
    engine = wall_engine("fedasync", events.append, seconds=1000.0)
    for device in range(DEVICES):
        engine.handle(Joined(0.0, device, SIZES[device]))
    engine.handle(Started(0.0))
    for step in range(2000):
        now = step / 10
        for number in list(engine.flights):
            flight = engine.flights[number]
            if flight.device == 3:
                engine.handle(Failed(now, number, "crash"))
            elif now - flight.started > 2.0:
                engine.handle(Arrived(now, number, trained(number, flight.weights), 1.0, 1.0))
    sent = np.bincount([event.device for event in events if isinstance(event, Dispatched)], minlength=DEVICES)
    assert 0 < sent[3] < 10, "200 seconds: three tries, then one after each rest"
    assert sent.sum() > 200
    arrays = Encoder()
    copy = Decoder(arrays.arrays).decode(arrays.encode(engine.resting))
    assert copy.state() == engine.resting.state()


def test_a_rested_device_gets_jobs_again() -> None:
    events: list[Event] = []
    engine = wall_engine("fedasync", events.append, seconds=1000.0)
    engine.handle(Joined(0.0, 0, 10))
    engine.handle(Started(0.0))
    for _ in range(PATIENCE):
        [number] = engine.flights
        engine.handle(Failed(1.0, number, "rejected"))
    assert not engine.flights
    assert len(engine.idle) == 0
    engine.handle(Passed(1.0 + FIRST_REST))
    [flight] = engine.flights.values()
    engine.handle(Arrived(40.0, flight.number, trained(flight.number, flight.weights), 1.0, 1.0))
    assert not engine.resting.rests(0, 40.0)
    assert engine.flights, "it works again at once"
