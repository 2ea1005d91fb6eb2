"""The dispatcher on a simulated network: devices crash, lie, vanish and return; the server is killed."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cabafl.deployment.messages import Declined, Gone, Here, JobFailed, Nonsense, Trained, TrainingReply
from cabafl.deployment.server.dispatcher import JOINS_PER_MINUTE
from cabafl.engine.inputs import Joined
from cabafl.recording.events import Lost, Uploaded
from tests.deployment.play_network import Killed, PlayNetwork, Server, constant
from tests.fleet_play import DEVICES, INITIAL

# Killed servers


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 200), max_size=6), st.sampled_from(["cabafl", "fedasync"]))
def test_a_server_killed_at_any_moment_counts_every_upload_once(
    tmp_path_factory: Any, seed: int, fuses: list[int], method: str
) -> None:
    """Before, between and after receiving, writing the journal, confirming and sending."""
    folder, network = tmp_path_factory.mktemp("run"), PlayNetwork(seed)
    server = Server(network, folder, method)
    for fuse in fuses:
        network.fuse = fuse
        try:
            server.run(until=30.0)
        except Killed:
            network.pass_time(0.5)
        network.fuse = None
        server.journal.close()
        server = Server(network, folder, method)
    server.run(until=30.0)
    assert len(server.uploads) == len(set(server.uploads)) == server.engine.ledger.uploads
    assert server.losses == []
    assert len(server.uploads) > 5
    owners = {job.number: job.device for job in network.sent}
    assert all(owners[job.number] == job.device for job in network.sent), "what left the server was on disk"
    assert owners.keys() == set(server.uploads) | server.engine.flights.keys(), "no job is lost"
    assert set(network.trainings.values()) == {1}, "no device trains a job twice"
    assert server.dispatcher.faults.total() == 0


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 150), min_size=1, max_size=4), st.integers(0, DEVICES - 1))
def test_a_device_that_restarts_while_the_server_is_away(
    tmp_path_factory: Any, seed: int, fuses: list[int], number: int
) -> None:
    """Its answer may be on its way or lost with its process; in either case the job ends once."""
    folder, network = tmp_path_factory.mktemp("run"), PlayNetwork(seed)
    server = Server(network, folder)
    for fuse in fuses:
        network.fuse = fuse
        try:
            server.run(until=30.0)
        except Killed:
            network.devices[number].restart()
        network.fuse = None
        server.journal.close()
        server = Server(network, folder)
    server.run(until=35.0)
    ended = Counter(server.uploads) + Counter(event.job for event in server.events if isinstance(event, Lost))
    assert set(ended.values()) == {1}
    assert set(server.losses) <= {(number, "crash")}
    assert len(server.engine.flights) == 3


def test_nothing_is_sent_or_confirmed_before_it_is_in_the_journal(tmp_path: Path) -> None:
    """`PlayNetwork.tick` looks into the journal at every call, here and in all other tests."""
    network = PlayNetwork()
    server = Server(network, tmp_path, "cabafl", limits={"slot_timeout": 2.0})
    server.run(until=10.0)
    network.connect()
    server.run(until=20.0)
    assert {*network.calls} == {"receive", "commit", "confirm", "send", "recall", "cancel", "ask", "tidy"}
    server.journal.add(Joined(20.0, 0, 1))
    with pytest.raises(AssertionError, match="before the journal is written"):
        server.dispatcher.carrier.tidy([])


def test_a_recall_waits_for_the_journal_too(tmp_path: Path) -> None:
    """A device says that it is here in the batch in which it gets a job."""
    network = PlayNetwork()
    server = Server(network, tmp_path)
    server.run(until=10.0)
    busy = network.sent[-1].device
    network.put(network.devices[busy].here())
    network.put(Gone((busy + 1) % DEVICES))
    network.calls.clear()
    server.dispatcher.step(0.5)
    assert network.calls.index("commit") < network.calls.index("recall")
    assert network.recalls[-1][0] == busy


def test_a_device_present_at_the_kill_that_never_returns_is_dropped_when_the_network_is_steady(tmp_path: Path) -> None:
    network = PlayNetwork()
    server = Server(network, tmp_path)
    server.run(until=10.0)
    server.journal.close()
    network.devices[2].online = False
    server = Server(network, tmp_path)
    server.run(until=12.0)
    assert 2 in server.engine.present
    server.run(until=20.0)
    assert server.engine.present == set(range(DEVICES)) - {2}
    assert set(server.losses) <= {(2, "left")}


def test_a_network_that_comes_back_costs_no_device_and_no_job(tmp_path: Path) -> None:
    network = PlayNetwork()
    server = Server(network, tmp_path)
    server.run(until=10.0)
    network.connect()
    network.queue = [delivery for delivery in network.queue if not isinstance(delivery.news, Here)]
    for number in range(DEVICES):
        network.put(Gone(number, network.devices[number].process))  # the broker's restart publishes every will
    server.run(until=12.0)
    for device in network.devices:
        network.put(device.here())
    server.run(until=25.0)
    assert server.losses == []
    assert server.engine.present == set(range(DEVICES))


# Devices that crash, vanish, return and lie


def test_faulty_jobs_are_lost_and_the_run_continues(tmp_path: Path) -> None:
    network = PlayNetwork()
    network.devices[7].online = False
    network.answers = {
        0: lambda job: JobFailed(0, job.number, "crash", "SIGKILL"),
        1: lambda job: None,  # never answers
        2: constant([np.nan] * 4),
        3: constant([0.0] * 5),
        4: lambda job: JobFailed(4, job.number, "rejected", "not an array"),
        5: lambda job: Nonsense(5, "bytes"),
    }
    server = Server(network, tmp_path, enough=DEVICES - 1, limits={"slot_timeout": 6.0})
    server.run(until=20.0)
    network.join(7)
    server.run(until=40.0)
    network.leave(6)  # one of the two good devices
    server.run(until=59.0)
    reasons = Counter(reason for _, reason in server.losses)
    assert reasons.keys() >= {"crash", "timeout", "rejected"}
    assert server.engine.present == {0, 1, 2, 3, 4, 5, 7}
    assert np.isfinite(server.engine.model).all()
    assert {event.device for event in server.events if isinstance(event, Uploaded)} == {6, 7}
    assert {device for device, _ in network.cancelled} >= {1}, "a device is told that its job is given up"
    assert server.dispatcher.faults.keys() == {0, 4, 5}


def test_a_device_that_answers_for_another_is_told_apart(tmp_path: Path) -> None:
    network = PlayNetwork()
    server = Server(network, tmp_path)
    server.run(until=3.0)
    job = next(iter(server.engine.flights.values()))
    liar = (job.device + 1) % DEVICES
    network.put(Trained(liar, job.number, TrainingReply(INITIAL * 100, 1.0, 1.0, None)))
    network.put(JobFailed(liar, job.number, "crash", "it is gone"))
    network.put(JobFailed(liar, job.number, "unknown", ""))
    network.put(Trained(liar, 1 << 53, TrainingReply(INITIAL, 1.0, 1.0, None)))
    server.dispatcher.step(0.5)
    assert job.number in server.engine.flights
    assert server.dispatcher.faults == {liar: 3}
    assert server.losses == []


def test_a_device_of_no_samples_and_one_of_absurdly_many(tmp_path: Path) -> None:
    network = PlayNetwork()
    network.devices[0].samples, network.devices[1].samples = 0, 1 << 53
    server = Server(network, tmp_path)
    server.run(until=15.0)
    assert 0 not in {job.device for job in network.sent}
    assert np.isfinite(server.engine.model).all()
    assert len(server.uploads) > 5


def test_a_device_whose_claim_is_cut_back_keeps_its_job_when_it_says_again_that_it_is_here(tmp_path: Path) -> None:
    network = PlayNetwork()
    network.devices[3].samples = 1 << 53
    network.answers = {3: lambda job: None}
    server = Server(network, tmp_path)
    server.engine.defence.change("sample_quantile", 0.5)
    server.run(until=30.0)
    assert server.engine.sizes[3] < server.engine.defence.claimed[3]
    assert server.engine.flight_of(3) is not None
    network.connect()
    server.run(until=31.0)
    assert server.losses == []
    joins = [given for _, given in server.journal.inputs() if isinstance(given, Joined)]
    assert len(joins) == DEVICES


def test_a_new_process_loses_the_job_of_the_one_before_and_gets_another(tmp_path: Path) -> None:
    network = PlayNetwork()
    network.answers = {0: lambda job: None}
    server = Server(network, tmp_path)
    server.run(until=20.0)
    stuck = server.engine.flight_of(0)
    assert stuck is not None
    network.answers = {}
    network.join(0)
    server.run(until=40.0)
    assert server.losses == [(0, "crash")]
    assert any(job.device == 0 and job.number > stuck.number for job in network.sent)
    network.put(Gone(0, "0.1"))
    server.run(until=41.0)
    assert 0 in server.engine.present, "the will of the earlier process"


def test_a_device_that_joins_too_often_is_ignored_for_a_while(tmp_path: Path) -> None:
    network = PlayNetwork()
    server = Server(network, tmp_path)
    server.run(until=1.0)
    before = server.journal.length
    for number in range(50):
        network.put(Here(0, f"flood {number}", 10))
    server.dispatcher.step(0.5)
    joins = [given for _, given in server.journal.inputs(before) if isinstance(given, Joined)]
    assert len(joins) == JOINS_PER_MINUTE - 1, "one was its first"
    assert server.dispatcher.faults[0] == 50 - len(joins)
    assert server.said("joins more than") == 1
    network.pass_time(61.0)
    server.run(until=network.now + 0.5)
    network.join(0)
    server.dispatcher.step(0.5)
    assert server.dispatcher.processes[0] == network.devices[0].process


def test_two_processes_with_one_certificate_are_noticed(tmp_path: Path) -> None:
    network = PlayNetwork()
    server = Server(network, tmp_path)
    server.run(until=1.0)
    for process in ("a", "b", "a"):
        network.put(Here(0, process, 10))
        server.dispatcher.step(0.5)
    assert server.said("is its key used twice?") == 1


def test_a_device_outside_the_run_is_not_admitted(tmp_path: Path) -> None:
    network = PlayNetwork()
    server = Server(network, tmp_path)
    for news in (Here(DEVICES, "p", 10), Gone(DEVICES + 5), Nonsense(1 << 40, "x")):
        network.put(news)
    server.dispatcher.step(0.5)
    assert server.said("is not admitted: the run takes 8 devices") == 3
    assert server.engine.present == set(range(DEVICES))


def test_what_the_run_before_has_left_at_the_broker_is_no_fault(tmp_path: Path) -> None:
    network = PlayNetwork()
    server = Server(network, tmp_path)
    server.dispatcher.processes.pop(0, None)
    server.dispatcher._take(Nonsense(0, "248180 bytes"))
    assert server.said("from before it joined this run is left out: 248180 bytes") == 1
    assert server.dispatcher.faults[0] == 0
    server.dispatcher._take(Here(0, "p", 10))
    server.dispatcher._take(Nonsense(0, "248180 bytes"))
    assert server.dispatcher.faults[0] == 1


def test_a_device_that_declines_leaves_and_its_words_are_harmless(tmp_path: Path) -> None:
    network = PlayNetwork()
    server = Server(network, tmp_path)
    server.run(until=5.0)
    network.put(Declined(4, "not now\n\x1b[2Jforged \ud800 line"))
    server.dispatcher.step(0.5)
    assert 4 not in server.engine.present
    assert server.dispatcher.declined == {4: "not now  [2Jforged   line"}
    assert not any("\x1b" in line or "\n" in line.rstrip("\n") for line in server.lines)
    network.put(network.devices[4].here())
    server.dispatcher.step(0.5)
    assert server.dispatcher.declined == {}
    assert 4 in server.engine.present


def test_excluded_and_removed_devices_take_no_part(tmp_path: Path) -> None:
    network = PlayNetwork()
    server = Server(network, tmp_path)
    server.run(until=5.0)
    server.journal.close()
    network.sent.clear()
    server = Server(network, tmp_path, excluded=frozenset({2}))
    server.run(until=15.0)
    assert server.engine.present == set(range(DEVICES)) - {2}
    assert 2 not in {job.device for job in network.sent}
    network.away = frozenset({5, 99})
    server.run(until=21.0)
    network.put(network.devices[5].here())
    server.run(until=22.0)
    assert server.engine.present == set(range(DEVICES)) - {2, 5}
    assert server.said("is removed from the fleet") == 1
