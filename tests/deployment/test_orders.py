"""Corrections, jobs that finish early and results that are held, on their way between server and devices."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cabafl.assembly import assemble
from cabafl.config import load_experiment
from cabafl.deployment import wire
from cabafl.deployment.messages import Ready, Trained, TrainingJob, TrainingReply
from cabafl.deployment.mqtt.link import down_topic
from cabafl.engine.inputs import Held
from cabafl.methods.base import Job, Objective
from cabafl.recording.events import Published
from tests.deployment.play_network import Killed, PlayNetwork, Server
from tests.deployment.test_carrier import MODEL, SIZE, Bench, read
from tests.deployment.test_loop import DOWN, WEIGHTS, Playground
from tests.deployment.test_participant import SETTINGS, WHO, joined, never, zeros
from tests.fleet_play import SECONDS
from tests.runs import ALL_METHODS

EVERYTHING = "tests.engine.orders_method:Everything"


# The carrier


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_correction_travels_with_its_job_also_if_the_model_is_shared(bench: Bench, jobs: int) -> None:
    corrections = [np.full(SIZE, 1.0 + n, np.float32) for n in range(jobs)]
    bench.carrier.send([Job(n, n, 0, 7, MODEL, Objective(), corrections[n]) for n in range(jobs)])
    for n in range(jobs):
        record = read(bench.broker.payloads(down_topic(n)), "job", SIZE)
        job = wire.training_job(record, SIZE)
        assert bool(record.text("model")) == (jobs > 1)
        assert len(job.weights) == (0 if jobs > 1 else SIZE)
        assert job.correction is not None
        np.testing.assert_array_equal(job.correction, corrections[n])


def test_orders_to_a_device_and_what_it_says(bench: Bench) -> None:
    bench.carrier.finish(3, 8)
    bench.carrier.fetch(3, 9)
    finish, fetch = bench.broker.payloads(down_topic(3))
    assert (read([finish], "finish").count("job"), read([fetch], "fetch").count("job")) == (8, 9)
    bench.says("ready", job=9, seconds=1.5, joules=2.5)
    assert bench.news() == [Ready(3, 9, 1.5, 2.5)]


# The dispatcher


def test_a_run_with_everything_loses_nothing(tmp_path: Path) -> None:
    network = PlayNetwork()
    server = Server(network, tmp_path, EVERYTHING)
    server.run(until=SECONDS)
    assert len(server.uploads) > 20
    assert {job for _, job in network.fetched} >= set(server.uploads)
    assert {reason for _, reason in server.losses} == {"cancelled"}
    assert all(job.correction is not None for job in network.sent)
    assert set(network.finished) == {(job.device, job.number) for job in network.sent} & set(network.finished) != set()
    assert server.engine.ledger.downloads == 2 * server.engine.ledger.dispatches


@pytest.mark.parametrize("fuse", range(40, 400, 23))
def test_a_server_killed_anywhere_fetches_again_what_it_had_asked_for(tmp_path: Path, fuse: int) -> None:
    network = PlayNetwork()
    server = Server(network, tmp_path, EVERYTHING)
    network.fuse = fuse
    with pytest.raises(Killed):
        server.run(until=SECONDS)
    server.journal.close()
    again = Server(network, tmp_path, EVERYTHING)
    again.run(until=SECONDS)
    assert len(again.uploads) == len(set(again.uploads)) > 20
    assert {reason for _, reason in again.losses} == {"cancelled"}
    flying = {job for job, flight in again.engine.flights.items() if again.engine.now - flight.started > 15.0}
    assert not flying, "no job is forgotten"
    versions = [event.version for event in again.events if isinstance(event, Published)]
    assert versions == list(range(1, len(versions) + 1))


@pytest.mark.parametrize("name", ALL_METHODS)
def test_a_server_killed_with_any_method_continues(tmp_path: Path, name: str) -> None:
    for fuse in (70, 190):
        network, folder = PlayNetwork(), tmp_path / str(fuse)
        folder.mkdir()
        server = Server(network, folder, name)
        network.fuse = fuse
        with pytest.raises(Killed):
            server.run(until=SECONDS)
        server.journal.close()
        again = Server(network, folder, name)
        again.run(until=SECONDS)
        assert len(again.uploads) == len(set(again.uploads)) > 10
        assert {reason for _, reason in again.losses} <= {"cancelled"}
        versions = [event.version for event in again.events if isinstance(event, Published)]
        assert versions == list(range(1, len(versions) + 1)) != []
        assert not [f for f in again.engine.flights.values() if not f.held and again.engine.now - f.since > 15.0]


def test_an_order_that_a_device_missed_is_given_again(tmp_path: Path) -> None:
    network = PlayNetwork()
    network.deaf = {0}
    server = Server(network, tmp_path, EVERYTHING)
    server.run(until=15.0)
    flight = server.engine.flight_of(0)
    assert flight is not None
    assert flight.fetched is not None
    network.deaf = set()
    network.put(network.devices[0].here())  # it is connected again, and asked about its job
    server.run(until=17.0)
    assert flight.number in server.uploads
    assert network.fetched.count((0, flight.number)) == 2


def test_a_second_word_of_a_result_is_not_journaled(tmp_path: Path) -> None:
    network = PlayNetwork()
    network.deaf = set(range(8))
    server = Server(network, tmp_path, EVERYTHING)
    server.run(until=8.0)
    for device in network.devices:
        network.put(device.here())
    server.run(until=10.0)
    held = [given.job for _, given in server.journal.inputs() if isinstance(given, Held)]
    assert held
    assert len(held) == len(set(held))


def test_a_device_that_disconnects_while_it_holds_a_result_loses_it(tmp_path: Path) -> None:
    network = PlayNetwork()
    network.deaf = {0}
    server = Server(network, tmp_path, EVERYTHING)
    server.run(until=15.0)
    flight = server.engine.flight_of(0)
    assert flight is not None
    network.leave(0)
    server.run(until=16.0)
    assert (0, "left") in server.losses
    network.deaf = set()
    network.join(0)
    server.run(until=40.0)
    assert flight.number not in server.uploads
    assert len(server.engine.jobs.pending) + len(server.engine.jobs.held) == server.engine.slots


# The device


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Playground(monkeypatch)
    made.start()
    yield made
    made.stop()


def test_a_device_ends_its_job_when_it_is_told_to_finish(play: Playground) -> None:
    play.worker.slow.set()
    play.order("finish", 4)  # of a job that it does not have
    play.job(5)
    play.wait(lambda: play.worker.began == [5])
    time.sleep(0.02)
    assert not play.said("trained")
    play.order("finish", 5)
    play.wait(lambda: bool(play.said("trained")))
    [answer] = play.said("trained")
    assert (answer["job"], answer["steps"], answer["epochs"]) == (5, 3, 1)


def test_a_device_holds_its_result(play: Playground) -> None:
    values = wire.job_values("one", 5, Objective(hold=True))
    play.broker.publish(DOWN, wire.encode("job", values, WEIGHTS)[0])
    play.wait(lambda: bool(play.said("ready")))
    assert play.said("ready") == [{"run": "one", "job": 5, "seconds": 1.5, "joules": 2.5}]
    assert not play.said("trained")
    play.order("fetch", 5)
    play.wait(lambda: bool(play.said("trained")))


def test_a_participant_ends_after_the_running_epoch(tmp_path: Path) -> None:
    """The bits of a job of so many epochs; the pace is that of the epochs done."""
    device, greeting = joined(tmp_path, pace=1.0)
    parts = assemble(load_experiment(None, SETTINGS))
    epochs = parts.experiment.training.epochs
    assert epochs > 1
    how, correction = Objective(report_loss=True, report_square=True), np.full(greeting.weights, 0.5, np.float32)
    began = time.monotonic()
    reply = device.train(TrainingJob(17, zeros(greeting), how, correction), never, lambda: True)
    assert reply is not None
    assert 1.0 / epochs <= time.monotonic() - began < 1.0
    expected = parts.task.train(17, WHO, zeros(greeting), Objective(1, 1.0, 0.0, True, True), correction)
    np.testing.assert_array_equal(reply.weights, expected.weights)
    assert (reply.loss, reply.square_loss, reply.steps, reply.epochs) == expected[1:]
    assert reply.epochs == 1


def test_a_finish_that_comes_during_the_pace_is_heard(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path, pace=8.0)
    told = threading.Event()
    threading.Timer(0.3, told.set).start()
    began = time.monotonic()
    reply = device.train(TrainingJob(17, zeros(greeting), Objective()), never, told.is_set)
    assert isinstance(reply, TrainingReply)
    assert reply.epochs == 1
    assert time.monotonic() - began < 7


# Flower


def test_on_flower_the_server_holds_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flower = pytest.importorskip("tests.deployment.test_flower", reason="Flower is not installed (extra `flower`)")
    flower.identity.__wrapped__(monkeypatch)
    grid = flower.FakeGrid(tmp_path)
    network = flower.opened(grid)
    flower.news(network)
    correction = np.full_like(flower.MODEL, 0.25)
    jobs = [Job(7, 1, 0, 3, flower.MODEL, Objective(hold=True), correction), Job(8, 0, 0, 3, flower.MODEL)]
    network.send(jobs)
    found = sorted(flower.news(network), key=lambda news: news.job)
    assert [type(news) for news in found] == [Ready, Trained]
    assert flower.news(network) == []
    network.finish(1, 7)
    network.fetch(1, 7)
    [trained] = flower.news(network)
    assert isinstance(trained, Trained)
    assert (trained.device, trained.job) == (1, 7)
    network.send([Job(9, 1, 0, 3, flower.MODEL, Objective(hold=True))])
    assert [type(news) for news in flower.news(network)] == [Ready]
    network.cancel(1, 9)
    network.fetch(1, 9)
    assert flower.news(network) == []
    network.tidy(set())
    assert not network._to_hold
