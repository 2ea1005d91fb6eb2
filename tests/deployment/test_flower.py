"""Flower as the network: its public grid with nodes in this process, and the app that answers on a node."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed (extra `flower`)")

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from cabafl.assembly import make_server_task
from cabafl.config import load_experiment
from cabafl.deployment import wire
from cabafl.deployment.device.participant import Participant
from cabafl.deployment.device.terms import Terms
from cabafl.deployment.flower import app, carrier
from cabafl.deployment.flower.app import PlainGrid
from cabafl.deployment.flower.carrier import FEATURES, HELLO, TRAIN, FlowerCarrier, from_record, to_record
from cabafl.deployment.folder.layout import Device
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.log import Log
from cabafl.deployment.messages import Gone, Here, JobFailed, Nonsense, Trained
from cabafl.deployment.server.carrier import RunOnFleet
from cabafl.deployment.server.serve import Station, for_devices, serve
from cabafl.methods.base import FeatureKind, Job, Objective
from tests.deployment.fleet_runs import JOBS, SETTINGS

DEVICES = 2
EXPERIMENT = for_devices(load_experiment(None, [*SETTINGS, "fleet.slots=1"]), DEVICES)
TASK = make_server_task(EXPERIMENT)
SIZE = TASK.model.layout.size
GREETING = Greeting.of(EXPERIMENT, TASK, DEVICES)
MODEL = TASK.model.save()
RUN = RunOnFleet("run", GREETING.text(), SIZE, TASK.feature_width, 600.0)


class FakeGrid:
    """Nodes that answer at once, each with a participant; answers wait until they are pulled, once."""

    def __init__(self, folder: Path) -> None:
        self.online = {100 + number for number in range(DEVICES)}
        self.workers = [
            Participant(Device(folder, "", number, number, terms=Terms(labels=True))) for number in range(DEVICES)
        ]
        self.samples = [worker.join(GREETING) for worker in self.workers]
        self.mail: dict[str, Message] = {}
        self.sent: list[Message] = []
        self.content: dict[int, Any] = {}  # node: what it answers instead
        self.silent: set[str] = set()  # message types that are not answered

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            name = f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            self.sent.append(message)
            if message.metadata.message_type not in self.silent:
                self.mail[name] = self._reply(message)
            names.append(name)
        return names

    def _reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        content = self.content.get(node)
        if isinstance(content, Error):
            return Message(content, reply_to=message)
        return Message(content or self._answer(node - 100, message), reply_to=message)

    def _answer(self, number: int, message: Message) -> RecordDict:
        lengths = {"greeting": 0, "job": SIZE, "query": SIZE}
        record = from_record(message.content, wire.message_limit(SIZE), lengths)
        assert not record.problem
        kind = message.metadata.message_type
        return to_record(app._answer(self.workers[number], kind, record, self.samples[number], SIZE))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.mail.pop(name) for name in list(message_ids) if name in self.mail]


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower needs these globals to create messages; it sets them in a real server."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(carrier, "NODE_INTERVAL", 0.0)
    monkeypatch.setattr(carrier, "POLL_INTERVAL", 0.001)


@pytest.fixture
def grid(tmp_path: Path) -> FakeGrid:
    return FakeGrid(tmp_path)


def opened(grid: FakeGrid) -> FlowerCarrier:
    return FlowerCarrier(grid, {0: 100, 1: 101}, RUN, Log(file=io.StringIO()))


def news(network: FlowerCarrier) -> list[Any]:
    return [delivery.news for delivery in network.receive(0.0)]


def test_nodes_are_greeted_when_they_come_and_missed_when_they_go(grid: FakeGrid) -> None:
    network = opened(grid)
    assert not network.steady, "nobody could answer yet"
    grid.silent = {HELLO}
    assert news(network) == []
    assert not network.steady, "a greeting is on its way"
    network = opened(grid)
    grid.silent = set()
    assert news(network) == [Here(0, "flower", grid.samples[0]), Here(1, "flower", grid.samples[1])]
    assert network.steady
    assert network.removed() == frozenset()
    grid.online = {101}
    assert news(network) == [Gone(0)]
    grid.online = {100, 101, 102}
    assert news(network) == [Here(0, "flower", grid.samples[0])]


def test_jobs_and_features_there_and_back(grid: FakeGrid) -> None:
    network = opened(grid)
    news(network)
    network.send([Job(7, 1, 0, 3, MODEL, Objective(report_loss=True))])
    [trained] = news(network)
    assert isinstance(trained, Trained)
    assert (trained.device, trained.job) == (1, 7)
    assert trained.reply.weights.shape == MODEL.shape
    assert not np.array_equal(trained.reply.weights, MODEL)
    assert trained.reply.loss is not None
    kinds: tuple[FeatureKind, ...] = ("activations", "labels")
    for kind in kinds:
        network.ask(9, MODEL, kind, 10.0)
        answers = news(network)
        assert [(answer.device, answer.query) for answer in answers] == [(0, 9), (1, 9)]
        assert all(len(answer.features) == TASK.feature_width(kind) for answer in answers)


def test_a_job_reveals_nothing_about_earlier_devices(grid: FakeGrid) -> None:
    network = opened(grid)
    news(network)
    network.send([Job(7, 1, 2, 3, MODEL)])
    record = from_record(grid.sent[-1].content, wire.message_limit(SIZE), {"job": SIZE})
    assert record.values.keys() == {
        "run",
        "job",
        "epochs",
        "lr_scale",
        "prox",
        "report_loss",
        "report_square",
        "hold",
        "correction",
        "model",
    }
    assert grid.sent[-1].metadata.group_id == ""


def test_errors_and_wrong_answers_fail_their_job(grid: FakeGrid) -> None:
    network = opened(grid)
    news(network)
    wrong = {
        "crash": Error(2, "patient 17"),
        "a record": RecordDict({"message": ConfigRecord({"0": b"nonsense"})}),
        "an array": RecordDict({"message": ArrayRecord([np.zeros(3)])}),
        "more": RecordDict({"message": ConfigRecord({"0": b"x"}), "more": ConfigRecord({"1": 1})}),
        "no packet": RecordDict({"message": ConfigRecord({"1": b"x"})}),
        "text": RecordDict({"message": ConfigRecord({"0": "x"})}),
        "half": to_record(wire.encode("features", {"run": "run", "query": 1}, MODEL, 1 << 12)[:2]),
        "another kind": to_record(wire.encode("refused", {"run": "run", "query": 1, "text": ""})),
    }
    for number, (name, content) in enumerate(wrong.items()):
        grid.content = {101: content}
        network.send([Job(number, 1, 0, 3, MODEL)])
        [failed] = news(network)
        assert isinstance(failed, JobFailed), name
        assert failed[:3] == (1, number, "crash" if name == "crash" else "rejected")
        assert "patient" not in failed.text
        network.ask(number, MODEL, "labels", 10.0)
        assert [answer.features is None for answer in news(network)] == [False, True]


def test_a_node_that_does_not_understand_the_greeting_is_greeted_again(grid: FakeGrid) -> None:
    grid.content = {100: RecordDict({"x": ConfigRecord({"0": b"x"})})}
    network = opened(grid)
    first, _ = news(network)
    assert isinstance(first, Nonsense)
    grid.content = {}
    assert news(network) == [Here(0, "flower", grid.samples[0])]


def test_jobs_of_an_earlier_process_are_sent_again(grid: FakeGrid) -> None:
    network = opened(grid)
    network.expect([Job(7, 1, 0, 3, MODEL)])
    assert [type(item) for item in news(network)] == [Trained, Here, Here]


def test_what_flower_cannot_do_does_no_harm(grid: FakeGrid) -> None:
    network = opened(grid)
    news(network)
    sent = len(grid.sent)
    network.recall(Job(7, 1, 0, 3, MODEL))
    network.cancel(1, 7)
    network.tidy(())
    network.confirm([])
    network.close(finished=True)
    assert len(grid.sent) == sent
    network.wake()
    assert network.receive(60.0) == [], "a signal ends the waiting"


def test_a_whole_run_on_the_grid(grid: FakeGrid, tmp_path: Path) -> None:
    """The same method, journal and engine as on MQTT."""
    late, grid.online = grid.online, {100}
    looks = 0
    plain = grid.get_node_ids

    def look() -> Iterable[int]:
        nonlocal looks
        looks += 1
        grid.online = late if looks > 1 else grid.online
        return plain()

    grid.get_node_ids = look  # type: ignore[method-assign]
    station = Station(tmp_path / "run", Log(file=io.StringIO()))
    summary = serve(EXPERIMENT, PlainGrid(grid, DEVICES), station)  # type: ignore[arg-type]
    assert summary is not None
    assert (summary["uploads"], summary["losses"]) == (JOBS, {})
    kinds = [message.metadata.message_type for message in grid.sent]
    assert kinds.count(TRAIN) == JOBS
    assert kinds.count(FEATURES) >= DEVICES
