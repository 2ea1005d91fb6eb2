"""Server and devices through a real Mosquitto: what both refuse, what survives a lost connection, what is sent once.

What the broker itself refuses is in test_refusals.py.
"""

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

pytest.importorskip("paho.mqtt", reason="needs paho-mqtt: pip install 'cabafl[deploy]'")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from cabafl.deployment import wire
from cabafl.deployment.broker import find_mosquitto, start_broker
from cabafl.deployment.device.light import LightParticipant
from cabafl.deployment.device.loop import DeviceLoop
from cabafl.deployment.device.session import Action
from cabafl.deployment.folder.layout import Device, FleetFolder
from cabafl.deployment.log import Log
from cabafl.deployment.messages import (
    Declined,
    Gone,
    Here,
    JobFailed,
    News,
    Nonsense,
    Trained,
    TrainingJob,
    TrainingReply,
)
from cabafl.deployment.mqtt.carrier import MqttCarrier
from cabafl.deployment.mqtt.fleet import device_account, server_account
from cabafl.deployment.mqtt.link import MODEL_TOPICS, RUN_TOPIC, here_topic, up_topic
from cabafl.deployment.server.carrier import RunOnFleet
from cabafl.methods.base import Job, Weights
from cabafl.processes.children import Children
from tests.deployment.bed import bare_greeting
from tests.deployment.odd_device import damaged, with_version
from tests.deployment.raw_mqtt import OK, PATIENCE, clients, local_fleet

if find_mosquitto() is None:
    pytest.skip("needs Mosquitto 2 (Debian: apt-get install mosquitto)", allow_module_level=True)

WEIGHTS = 1000
N = TypeVar("N")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetFolder]:
    """Four devices and a running broker with small packets."""
    made = local_fleet(tmp_path_factory.mktemp("fleet") / "fleet", 4, packet_limit=1)
    with Children(made.state / "logs") as children:
        start_broker(children, made)
        yield made


class Office:
    """The server's end of the network, without a method."""

    def __init__(self, fleet: FleetFolder, run: str, weights: int = WEIGHTS) -> None:
        self.log = io.StringIO()
        on_fleet = RunOnFleet(run, bare_greeting(weights), weights, lambda kind: 1, 300.0)
        self.carrier = MqttCarrier(server_account(fleet), on_fleet, Log(file=self.log))
        self.news: list[News] = []
        while not self.carrier.connections:
            self.listen(0.1)
        until("a subscription", lambda: not self.carrier.link._client._out_messages)  # the greeting comes after it

    def wait(self, kind: type[N], device: int, seconds: float = PATIENCE) -> N:
        """The next news of this kind of a device."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for place, news in enumerate(self.news):
                if isinstance(news, kind) and news.device == device:
                    del self.news[place]
                    return news
            self.listen(0.2)
        raise AssertionError(f"no {kind.__name__} of device {device}: {self.log.getvalue()}")

    def listen(self, seconds: float) -> None:
        deliveries = self.carrier.receive(seconds)
        self.carrier.confirm(deliveries)
        self.news += [delivery.news for delivery in deliveries]

    def send(self, *jobs: Job) -> None:
        self.carrier.send(jobs)


@contextmanager
def office(fleet: FleetFolder, run: str, weights: int = WEIGHTS, finished: bool = True) -> Iterator[Office]:
    made = Office(fleet, run, weights)
    try:
        yield made
    finally:
        made.carrier.close(finished)


class Worker(LightParticipant):
    """Adds one to each weight, when it may."""

    def __init__(self, number: int) -> None:
        super().__init__(number, 0.0, 1)
        self.jobs: list[TrainingJob] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def train(
        self, job: TrainingJob, cancelled: Callable[[], bool], finishing: Callable[[], bool] = lambda: False
    ) -> TrainingReply | None:
        self.jobs.append(job)
        while not self.may_answer.wait(0.02):
            if cancelled():
                return None
        return TrainingReply(job.weights + 1, 0.1, 0.0, None)


class Resident:
    """A device in a thread of this process."""

    def __init__(self, fleet: FleetFolder, number: int, folder: Path | None = None) -> None:
        self.log = io.StringIO()
        self.worker = Worker(number)
        device = Device.load(folder or fleet.device_folders()[number])
        self.loop = DeviceLoop(device.id, device_account(device), self.worker, Log(file=self.log))
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()

    def cut(self, seconds: int) -> None:
        """Loses its connection for this long."""
        client = self.loop.link._client
        client.reconnect_delay_set(seconds, seconds)
        sock = client.socket()
        assert isinstance(sock, socket.socket)
        sock.shutdown(socket.SHUT_RDWR)
        until("the loss", lambda: not self.loop.link.online.is_set())

    def end(self) -> None:
        self.loop.stop.set()
        self.loop._tasks.put(None)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@contextmanager
def residents(fleet: FleetFolder, *numbers: int) -> Iterator[list[Resident]]:
    made = [Resident(fleet, number) for number in numbers]
    try:
        yield made
    finally:
        for device in made:
            device.end()


def until(what: str, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def model(weights: int = WEIGHTS) -> Weights:
    return np.arange(weights, dtype=np.float32)


def job(number: int, device: int, weights: Weights | None = None) -> Job:
    return Job(number, device, 0, 0, model() if weights is None else weights)


def upload(run: str, number: int, weights: Weights) -> bytes:
    [packet] = wire.encode("trained", wire.reply_values(run, number, TrainingReply(weights, 0.1, 0.0, None)), weights)
    return packet


# What is refused


def test_what_is_not_a_message_is_refused_and_the_next_one_counts(fleet: FleetFolder) -> None:
    with office(fleet, "malformed") as server, clients(fleet, 0) as [device]:
        good = upload("malformed", 5, model())
        server.send(job(5, 0))
        for bad in damaged(good):
            assert device.publish(up_topic(0), bad) == OK
            assert server.wait(Nonsense, 0).text
        assert device.publish(up_topic(0), good) == OK
        assert server.wait(Trained, 0).job == 5


def test_another_version_is_refused_on_both_sides(fleet: FleetFolder) -> None:
    with office(fleet, "version") as server, clients(fleet, 0) as [device]:
        [here] = wire.encode("here", {"run": "version", "process": "p", "samples": 3, "declined": ""})
        assert device.publish(here_topic(0), with_version(here, 9), retain=True) == OK
        assert server.wait(Declined, 0).text == "protocol version 9; accepted: 2 (upgrade the older side)"
        assert device.publish(up_topic(0), with_version(upload("version", 1, model()), 9)) == OK
        assert "protocol version 9" in server.wait(Nonsense, 0).text
        assert device.publish(here_topic(0), b"", retain=True) == OK
    with clients(fleet, None) as [server_client], residents(fleet, 1) as [resident]:
        server_client.subscribe(here_topic(1))
        [greeting] = wire.encode("greeting", {"run": "x", "greeting": "{}"})
        assert server_client.publish(RUN_TOPIC, with_version(greeting, 9), retain=True) == OK
        until("a complaint", lambda: "the server speaks protocol version 9" in resident.log.getvalue())
        until("a word to the server", lambda: b"another version" in server_client.receive()[1])
        assert server_client.publish(RUN_TOPIC, b"", retain=True) == OK


def test_what_belongs_to_another_run_is_ignored(fleet: FleetFolder) -> None:
    with office(fleet, "this") as server, clients(fleet, 0) as [device]:
        for run, number in (("that", 1), ("this", 2)):
            assert device.publish(up_topic(0), upload(run, number, model()[:10])) == OK
        assert server.wait(JobFailed, 0).job == 2  # the first of which anything is heard


# What survives


def test_a_large_model_travels_in_pieces(fleet: FleetFolder) -> None:
    """5 MB each way through packets of 1 MiB."""
    weights = 1_250_000
    with residents(fleet, 0) as [device], office(fleet, "pieces", weights) as server:
        server.wait(Here, 0)
        sent = np.random.default_rng(1).standard_normal(weights, dtype=np.float32)
        server.send(job(0, 0, sent))
        found = server.wait(Trained, 0)
        assert np.array_equal(device.worker.jobs[0].weights, sent)
        assert np.array_equal(found.reply.weights, sent + 1)


def test_a_model_for_several_devices_is_published_once(fleet: FleetFolder) -> None:
    weights = 50_000
    with (
        clients(fleet, 3) as [spy],
        residents(fleet, 0, 1, 2) as devices,
        office(fleet, "shared", weights) as server,
    ):
        spy.subscribe(f"{MODEL_TOPICS}/#")
        for number in range(3):
            server.wait(Here, number)
        shared = model(weights)
        server.send(*(job(number, number, shared) for number in range(3)))
        for number in range(3):
            assert np.array_equal(server.wait(Trained, number).reply.weights, shared + 1)
        assert all(np.array_equal(device.worker.jobs[0].weights, shared) for device in devices)
        server.carrier.tidy({})
        topic, payload = spy.receive()
        assert len(payload) > 4 * weights
        assert spy.receive() == (topic, b""), "one model, removed after its last job"
        assert spy.messages.empty()


def test_a_job_for_a_device_that_is_away_waits_for_it(fleet: FleetFolder) -> None:
    with residents(fleet, 0) as [device], office(fleet, "away") as server:
        server.wait(Here, 0)
        device.cut(3)
        server.send(job(0, 0))
        server.listen(1.0)
        assert not device.worker.jobs
        assert server.wait(Trained, 0).job == 0
        assert len(device.worker.jobs) == 1


def test_a_device_that_loses_its_connection_in_the_middle_of_a_shared_model(fleet: FleetFolder) -> None:
    """It fetches again what it had: pieces are not kept over a lost connection."""
    weights = 1_250_000
    with residents(fleet, 0, 1) as devices, office(fleet, "cut", weights) as server:
        for number in (0, 1):
            server.wait(Here, number)
        session, take = devices[0].loop.session, devices[0].loop.session.take
        lost: list[str] = []

        def lose(topic: str, payload: bytes) -> list[Action]:
            if not topic.startswith(MODEL_TOPICS) or devices[0].loop.link.connection > 1:
                return take(topic, payload)
            lost.append(topic)
            if len(lost) == 2:
                time.sleep(0.3)  # the broker knows that they have arrived
                devices[0].cut(1)
            return []

        session.take = lose  # type: ignore[method-assign]
        shared = model(weights)
        server.send(*(job(number, number, shared) for number in (0, 1)))
        assert np.array_equal(server.wait(Trained, 0).reply.weights, shared + 1)
        assert len(lost) >= 2


def test_an_upload_for_a_server_that_is_away_waits_for_it(fleet: FleetFolder) -> None:
    with residents(fleet, 0) as [device]:
        with office(fleet, "server away", finished=False) as server:
            server.wait(Here, 0)
            device.worker.may_answer.clear()
            server.send(job(7, 0))
            until("the job", lambda: bool(device.worker.jobs))
        device.worker.may_answer.set()
        time.sleep(1.0)
        with office(fleet, "server away") as server:
            assert server.wait(Trained, 0).job == 7


def test_what_is_not_confirmed_is_delivered_again(fleet: FleetFolder) -> None:
    """As after a crash between arrival and journal."""
    with residents(fleet, 0) as [device]:
        with office(fleet, "unconfirmed", finished=False) as server:
            server.wait(Here, 0)
            server.send(job(7, 0))
            until("news", lambda: any(isinstance(each.news, Trained) for each in server.carrier.receive(0.2)))
        with office(fleet, "unconfirmed") as server:
            assert server.wait(Trained, 0).job == 7
        assert len(device.worker.jobs) == 1


def test_a_recall_brings_the_answer_again_or_says_that_the_job_is_unknown(fleet: FleetFolder) -> None:
    with residents(fleet, 0) as [_], office(fleet, "recall") as server:
        server.wait(Here, 0)
        server.send(job(3, 0))
        server.wait(Trained, 0)
        server.carrier.recall(job(3, 0))
        assert server.wait(Trained, 0).job == 3
        server.carrier.recall(job(4, 0))
        found = server.wait(JobFailed, 0)
        assert (found.job, found.reason) == (4, "unknown")


def test_a_cancelled_job_ends_with_a_word(fleet: FleetFolder) -> None:
    with residents(fleet, 0) as [device], office(fleet, "cancel") as server:
        server.wait(Here, 0)
        device.worker.may_answer.clear()
        server.send(job(1, 0))
        until("the job", lambda: bool(device.worker.jobs))
        server.carrier.cancel(0, 1)
        assert server.wait(JobFailed, 0).text == "cancelled"
        server.send(job(2, 0))
        server.carrier.cancel(0, 2)  # perhaps before it has begun
        assert server.wait(JobFailed, 0).job == 2


def test_presence_follows_a_device(fleet: FleetFolder) -> None:
    with office(fleet, "presence") as server:
        device = Resident(fleet, 2)
        first = server.wait(Here, 2)
        server.news.clear()
        device.end()
        server.wait(Gone, 2)
        device = Resident(fleet, 2)
        while (again := server.wait(Here, 2)).process == first.process:
            pass
        device.end()
        assert first.samples == again.samples
