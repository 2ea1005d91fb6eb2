"""The dispatcher on a simulated network: jobs that get lost, feature collections, the clock."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cabafl.deployment.messages import Described, JobFailed
from cabafl.deployment.server.dispatcher import MAX_RESENDS, RECALL_AFTER
from cabafl.engine.inputs import Passed
from cabafl.recording.events import Collection, Dispatched, Published, Uploaded
from tests.deployment.play_network import PlayNetwork, Server
from tests.engine.test_wall import decisions, simulated
from tests.fleet_play import DEVICES, FEATURES, SECONDS

# Jobs that get lost


def test_a_job_that_its_device_does_not_have_is_sent_again_a_few_times(tmp_path: Path) -> None:
    network = PlayNetwork()
    network.answers = {0: lambda job: None}
    server = Server(network, tmp_path, limits={"seconds": 2000.0})
    for _ in range(300):
        server.run(until=network.now + 0.2)
        network.devices[0].latest = -1  # forgets the job
        network.put(network.devices[0].here())  # and is asked about it
    sent = Counter(job.number for job in network.sent if job.device == 0)
    assert set(server.losses) == {(0, "crash")}
    assert max(sent.values()) == 1 + MAX_RESENDS
    assert len(server.dispatcher._resends) <= 1, "those of jobs that have ended are forgotten"


def test_a_job_is_sent_again_once_for_each_time_its_device_was_asked(tmp_path: Path) -> None:
    """Restarted servers ask again; the answers to all of them may come to the last one."""
    network = PlayNetwork()
    network.answers = {0: lambda job: None}
    server = Server(network, tmp_path)
    server.run(until=20.0)
    flight = server.engine.flight_of(0)
    assert flight is not None
    unknown = JobFailed(0, flight.number, "unknown", "")
    for _ in range(10):
        network.put(unknown)  # nobody has asked
        server.dispatcher.step(0.5)
    assert [job.number for job in network.sent].count(flight.number) == 1
    network.devices[0].latest = -1
    network.put(network.devices[0].here())
    for _ in range(10):
        server.dispatcher.step(0.5)
        network.put(unknown)
    assert [job.number for job in network.sent].count(flight.number) == 2
    assert server.losses == []


def test_a_device_that_trains_for_long_is_asked_about_its_job_and_keeps_it(tmp_path: Path) -> None:
    network = PlayNetwork()
    network.answers = {0: lambda job: None}
    server = Server(network, tmp_path, limits={"seconds": 2000.0})
    server.run(until=20.0)
    network.recalls.clear()
    flight = server.engine.flight_of(0)
    assert flight is not None
    server.run(until=25.0 + RECALL_AFTER, step=0.5)
    assert network.recalls.count((0, flight.number)) == 1
    server.run(until=50.0 + 2 * RECALL_AFTER, step=0.5)
    assert network.recalls.count((0, flight.number)) == 2
    assert server.losses == []
    assert server.engine.flight_of(0) is flight


def test_an_abandoned_job_that_its_device_does_not_have_frees_the_device(tmp_path: Path) -> None:
    network = PlayNetwork()
    network.answers = {0: lambda job: None}
    server = Server(network, tmp_path, limits={"slot_timeout": 5.0})
    server.run(until=20.0)
    flight = server.engine.flight_of(0)
    assert flight is not None
    assert flight.abandoned
    network.answers = {}
    network.devices[0].latest = -1
    network.put(network.devices[0].here())
    server.run(until=45.0)
    assert [reason for device, reason in server.losses if device == 0] == ["timeout"]
    assert any(event.device == 0 for event in server.events if isinstance(event, Uploaded))


# Features


def collections(server: Server) -> list[tuple[str, int, int]]:
    return [(event.step, event.devices, event.missing) for event in server.events if isinstance(event, Collection)]


def test_a_collection_ends_when_all_have_answered_refused_or_left(tmp_path: Path) -> None:
    network = PlayNetwork()
    network.features = {
        0: lambda query: Described(0, query, None, "not today"),
        1: lambda query: None,
        2: lambda query: Described(2, query - 1, FEATURES[2]),
        3: lambda query: Described(3, query, FEATURES[3] * 1e30),
    }
    server = Server(network, tmp_path, "cabafl")
    server.run(until=4.0)
    assert server.engine.question is not None
    network.put(Described(4, network.queries[0], FEATURES[4] * 50))  # a second answer
    network.leave(1)
    network.put(Described(2, network.queries[0], FEATURES[2]))
    server.run(until=4.2)
    assert server.engine.question is None
    assert server.dispatcher.faults[0] == 1
    assert server.said("no features: not today") == 1
    server.run(until=30.0)
    assert len(server.uploads) > 5
    assert np.isfinite(server.engine.model).all()


def test_a_collection_with_silent_devices_ends_with_its_time(tmp_path: Path) -> None:
    network = PlayNetwork()
    network.features = {1: lambda query: None}
    server = Server(network, tmp_path, "cabafl", limits={"slot_timeout": 4.0})
    server.run(until=3.5)
    assert server.engine.question is not None
    server.run(until=5.0)
    assert server.engine.question is None
    assert collections(server)[1][2] == 1


def test_a_device_that_joins_during_the_first_collection_waits_for_its_end(tmp_path: Path) -> None:
    network = PlayNetwork()
    network.devices[7].online = False
    server = Server(network, tmp_path, "cabafl", enough=DEVICES - 1)
    network.features = {number: lambda query: None for number in range(6)}
    server.run(until=2.0)
    network.join(7)
    server.run(until=5.0)
    assert not network.sent
    for number in range(6):
        network.put(Described(number, network.queries[0], FEATURES[number]))
    server.run(until=30.0)
    assert server.losses == []
    assert len(server.uploads) > 5


def test_a_server_killed_during_a_collection_asks_again(tmp_path: Path) -> None:
    network = PlayNetwork()
    server = Server(network, tmp_path, "cabafl")
    server.run(until=0.2)
    assert len(network.queries) == 1
    server.journal.close()
    server = Server(network, tmp_path, "cabafl", excluded=frozenset({2}))
    server.run(until=30.0)
    assert len(network.queries) >= 2
    assert len(set(network.queries)) == len(network.queries)
    assert len(server.uploads) > 5
    assert 2 not in {job.device for job in network.sent}


def test_time_only_passes_while_a_run_goes_on(tmp_path: Path) -> None:
    network = PlayNetwork()
    network.devices[0].online = False
    server = Server(network, tmp_path)
    server.run(until=100.0)
    assert (server.dispatcher.started, server.dispatcher.now()) == (False, 0.0)
    network.join(0)
    server.run(until=110.0)
    assert 9.0 < server.dispatcher.now() < 10.0
    first = next(event for event in server.events if isinstance(event, Dispatched))
    assert first.time == 0.0
    server.journal.close()
    network.pass_time(1000.0)
    server = Server(network, tmp_path)
    assert 5.0 < server.dispatcher.now() < 10.0, "not while no server runs"


# The simulator


@pytest.mark.parametrize("method", ["cabafl", "fedasync"])
def test_the_simulator_takes_the_decisions_of_a_deployed_run(tmp_path: Path, method: str) -> None:
    """The inputs as the journal has them: what news, orders and messages do to them is in between."""
    network = PlayNetwork()
    server = Server(network, tmp_path, method)
    while server.dispatcher.now() < SECONDS:
        server.dispatcher.step(0.5)
        due = min((entry[0] for entry in network.agenda), default=network.now + 0.1)
        network.pass_time(max(due - network.now, 1e-6))
    server.engine.handle(Passed(SECONDS))
    server.engine.conclude()
    inputs = [given for _, given in server.journal.inputs()]
    again = simulated(method, inputs, server.events)
    assert sum(isinstance(event, Published) for event in server.events) > 3
    assert decisions(again) == decisions(server.events)
