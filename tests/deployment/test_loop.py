"""The device process: joins, trains, stops, answers features meanwhile, and survives what goes wrong."""

import io
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from cabafl.assembly import make_server_task
from cabafl.config import load_experiment
from cabafl.deployment import wire
from cabafl.deployment.device import loop as module
from cabafl.deployment.device.loop import DeviceLoop
from cabafl.deployment.device.terms import AgainstTerms
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.log import Log
from cabafl.deployment.messages import FeatureQuery, FeatureReply, TrainingJob, TrainingReply
from cabafl.deployment.mqtt.link import MODEL_TOPICS, QUERY_TOPIC, RUN_TOPIC, Account, down_topic, here_topic, up_topic
from cabafl.errors import UserError
from cabafl.methods.base import PLAIN, Weights
from tests.deployment.memory_broker import NOWHERE, MemoryBroker, MemoryLink

WEIGHTS: Weights = np.arange(6, dtype=np.float32)
HERE, UP, DOWN = here_topic(3), up_topic(3), down_topic(3)
LENGTHS = {"here": 0, "gone": 0, "trained": 6, "ready": 0, "failed": 0, "features": 2, "refused": 0}
EXPERIMENT = load_experiment(None, ["data.dataset=synthetic", "model.name=mlp", "data.devices=4"])
GREETING = Greeting.of(EXPERIMENT, make_server_task(EXPERIMENT), 4).model_copy(update={"weights": 6}).text()


class StubWorker:
    """Does what the test says."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.joins = self.leaves = 0
        self.began: list[int] = []
        self.cancelled: list[int] = []
        self.slow = threading.Event()  # trainings last until they are cancelled
        self.failure: Exception | None = None

    def join(self, greeting: Greeting) -> int:
        """See `Worker`."""
        self.joins += 1
        if self.failure is not None:
            raise self.failure
        return 100

    def leave(self) -> None:
        """See `Worker`."""
        self.leaves += 1

    def ready(self) -> str | None:
        """See `Worker`."""
        return self.reason

    def train(
        self, job: TrainingJob, cancelled: Callable[[], bool], finishing: Callable[[], bool]
    ) -> TrainingReply | None:
        """See `Worker`."""
        self.began.append(job.number)
        if self.failure is not None:
            raise self.failure
        while self.slow.is_set():
            if cancelled():
                self.cancelled.append(job.number)
                return None
            if finishing():
                return TrainingReply(job.weights + 1, 0.5, 1.0, None, None, 3, 1)
            time.sleep(0.001)
        return TrainingReply(job.weights + 1, 1.5, 2.5, None)

    def features(self, query: FeatureQuery) -> FeatureReply:
        """See `Worker`."""
        if self.failure is not None:
            raise self.failure
        return FeatureReply(np.ones(2, np.float32))


class Playground:
    """A device process in a thread, and the server's words to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "READY_INTERVAL", 0.02)
        self.broker = MemoryBroker()
        monkeypatch.setattr(module, "Link", self.broker.link)
        self.worker, self.lines = StubWorker(), io.StringIO()
        self.loop = DeviceLoop(3, Account("here", 1, "device-003", NOWHERE), self.worker, Log(file=self.lines))
        link = self.loop.link
        assert isinstance(link, MemoryLink)
        self.link: MemoryLink = link
        self.thread = threading.Thread(target=self.loop.run)

    def start(self) -> None:
        """Starts it and lets it join."""
        self.thread.start()
        self.wait(lambda: bool(self.said("here")))
        self.greet("one")
        self.wait(lambda: self.said("here")[-1]["run"] == "one")

    def greet(self, run: str, text: str = GREETING) -> None:
        [packet] = wire.encode("greeting", {"run": run, "greeting": text})
        self.broker.publish(RUN_TOPIC, packet, retain=True)

    def job(self, number: int, topic: str = "", run: str = "one") -> None:
        values = wire.job_values(run, number, PLAIN, topic)
        self.broker.publish(DOWN, wire.encode("job", values, WEIGHTS[:0] if topic else WEIGHTS)[0])

    def order(self, kind: str, number: int) -> None:
        self.broker.publish(DOWN, wire.encode(kind, {"run": "one", "job": number})[0])

    def query(self, number: int) -> None:
        values: dict[str, wire.Value] = {"run": "one", "query": number, "features": "labels"}
        self.broker.publish(QUERY_TOPIC, wire.encode("query", values, WEIGHTS)[0])

    def said(self, *kinds: str) -> list[dict[str, Any]]:
        """The device's messages of some kinds."""
        found = []
        for sent in list(self.broker.sent):
            if sent.topic in (HERE, UP) and sent.payload:
                content = wire.Assembler(1 << 20).add(sent.payload)
                assert content is not None
                record = wire.decode(content, LENGTHS)
                if record.kind in kinds:
                    found.append(dict(record.values))
        return found

    def wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end, self.lines.getvalue()
            time.sleep(0.002)

    def stop(self) -> None:
        self.loop.stop.set()
        self.loop._tasks.put(None)
        if self.thread.ident is not None:
            self.thread.join(10)
            assert not self.thread.is_alive()


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Playground]:
    made = Playground(monkeypatch)
    yield made
    made.stop()


def test_a_device_joins_trains_and_signs_off(play: Playground) -> None:
    assert play.link.will is not None
    assert (play.link.will.topic, play.link.will.payload) == (HERE, play.loop.session.absence().payload)
    play.start()
    first, *_, joined = play.said("here")
    assert (first["run"], joined["samples"], joined["declined"]) == ("", 100, "")
    play.job(4)
    play.wait(lambda: bool(play.said("trained")))
    assert play.said("trained")[0] == {
        "run": "one",
        "job": 4,
        "seconds": 1.5,
        "joules": 2.5,
        "has_loss": False,
        "loss": 0.0,
        "has_square": False,
        "square_loss": 0.0,
        "steps": 1,
        "epochs": 1,
    }
    play.stop()
    assert play.broker.retained[HERE] == play.loop.session.absence().payload
    assert "joins a run samples=100 model=mlp" in play.lines.getvalue()


def test_runs_follow_one_another_without_a_restart(play: Playground) -> None:
    play.start()
    play.broker.publish(RUN_TOPIC, b"", retain=True)
    play.wait(lambda: play.worker.leaves == 1)
    play.greet("two")
    play.wait(lambda: play.said("here")[-1]["run"] == "two")
    assert play.worker.joins == 2
    play.job(0, run="two")
    play.wait(lambda: bool(play.said("trained")))


def test_a_cancelled_job_stops_and_is_answered(play: Playground) -> None:
    play.start()
    play.worker.slow.set()
    play.job(4)
    play.wait(lambda: play.worker.began == [4])
    play.order("cancel", 3)
    time.sleep(0.05)
    assert play.worker.cancelled == []
    play.order("cancel", 4)
    play.wait(lambda: bool(play.said("failed")))
    assert play.said("failed") == [{"run": "one", "job": 4, "reason": "cancelled", "text": "cancelled"}]


def test_a_newer_job_replaces_an_older_one(play: Playground) -> None:
    play.start()
    play.worker.slow.set()
    for number in (4, 5, 6):
        play.job(number)
    play.wait(lambda: 6 in play.worker.began)
    play.worker.slow.clear()
    play.wait(lambda: bool(play.said("trained")))
    assert [values["job"] for values in play.said("trained")] == [6]
    assert {values["reason"] for values in play.said("failed")} <= {"cancelled"}


def test_a_job_of_an_earlier_run_is_dropped(play: Playground) -> None:
    play.start()
    play.worker.slow.set()
    play.job(4)
    play.wait(lambda: play.worker.began == [4])
    play.greet("two")
    play.wait(lambda: play.said("here")[-1]["run"] == "two")
    assert play.worker.cancelled == [4]
    assert play.said("failed", "trained") == [], "the server of the new run knows nothing of it"


def test_a_shared_model_is_fetched(play: Playground) -> None:
    play.start()
    topic = f"{MODEL_TOPICS}/abcd"
    for number, packet in enumerate(wire.encode("model", {}, WEIGHTS, 20)):
        play.broker.publish(f"{topic}/{number}", packet, retain=True)
    play.job(4, topic)
    play.wait(lambda: bool(play.said("trained")))
    play.wait(lambda: f"{topic}/+" not in play.link.client.patterns)


def test_features_are_reported_during_a_training(play: Playground) -> None:
    play.start()
    play.worker.slow.set()
    play.job(4)
    play.wait(lambda: play.worker.began == [4])
    play.query(7)
    play.wait(lambda: bool(play.said("features")))
    assert play.said("trained") == []
    play.worker.failure = AgainstTerms("no label counts")
    play.query(8)
    play.wait(lambda: bool(play.said("refused")))
    assert play.said("refused") == [{"run": "one", "query": 8, "text": "no label counts"}]
    play.worker.failure = ValueError("patient 17")
    play.query(9)
    play.wait(lambda: len(play.said("refused")) == 2)
    assert play.said("refused")[1]["text"] == "ValueError"


def test_a_failure_reveals_the_class_of_the_exception_only(play: Playground) -> None:
    play.start()
    play.worker.failure = ValueError("patient 17")
    play.job(4)
    play.wait(lambda: bool(play.said("failed")))
    assert play.said("failed") == [{"run": "one", "job": 4, "reason": "crash", "text": "ValueError"}]
    assert "patient 17" in play.lines.getvalue(), "the owner may know"
    play.worker.failure = None
    play.job(5)
    play.wait(lambda: bool(play.said("trained")))


def test_a_job_against_the_terms_is_declined_and_the_server_told(play: Playground) -> None:
    play.start()
    play.worker.failure = AgainstTerms("not now: on battery")
    play.worker.reason = "on battery"
    play.job(4)
    play.wait(lambda: bool(play.said("failed")))
    assert play.said("failed")[0] | {"run": "one"} == {
        "run": "one",
        "job": 4,
        "reason": "declined",
        "text": "not now: on battery",
    }
    play.wait(lambda: play.said("here")[-1]["declined"] == "not now")
    play.worker.reason = None
    play.wait(lambda: play.said("here")[-1]["declined"] == "")


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (UserError("model = 'x': unknown"), "UserError"),
        (AgainstTerms("trains with DP-SGD only"), "trains with DP-SGD only"),
        (KeyError("column"), "KeyError"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_device_that_cannot_join_declines_and_stays(play: Playground, failure: Exception, text: str) -> None:
    play.thread.start()
    play.worker.failure = failure
    play.greet("one")
    play.wait(lambda: bool(play.said("here")) and play.said("here")[-1]["declined"] == text)
    play.worker.failure = None
    play.greet("two")
    play.wait(lambda: play.said("here")[-1]["run"] == "two")
    assert play.said("here")[-1]["declined"] == ""


def test_a_greeting_that_cannot_be_read_is_declined(play: Playground) -> None:
    play.thread.start()
    play.greet("one", "{}")
    play.wait(lambda: bool(play.said("here")) and play.said("here")[-1]["declined"] == "UserError")
    play.greet("two", "no JSON")
    play.wait(lambda: play.said("here")[-1]["declined"] == "JSONDecodeError")


def test_a_new_connection_repeats_the_presence(play: Playground) -> None:
    play.start()
    before = len(play.said("here"))
    play.link.break_off("cut")
    play.link.open()
    play.wait(lambda: len(play.said("here")) > before)
    assert play.said("here")[-1]["run"] == "one"
    assert "warning cut" in play.lines.getvalue()


def test_a_key_that_is_used_twice_is_named_and_the_device_slows_down(play: Playground) -> None:
    play.start()
    play.link.break_off("disconnected", taken_over=True)
    play.wait(lambda: play.link.slow)
    assert "another process may use this device's certificate" in play.lines.getvalue()


def test_many_short_connections_are_suspicious_too(play: Playground) -> None:
    play.start()
    for _ in range(module.MANY_SHORT):
        assert not play.link.slow
        play.link.break_off("disconnected")
        play.link.open()
    play.wait(lambda: play.link.slow)


def test_nonsense_of_the_server_is_logged(play: Playground) -> None:
    play.start()
    play.broker.publish(DOWN, b"nonsense")
    play.wait(lambda: "a message of the server is refused" in play.lines.getvalue())
    play.job(4)
    play.wait(lambda: bool(play.said("trained")))


def test_a_failure_of_the_listener_ends_the_device(play: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise UserError("a bug")

    monkeypatch.setattr(play.link, "subscribe", fail)
    with pytest.raises(UserError, match="a bug"):
        play.loop.run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_training_and_signs_off(play: Playground, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    play.worker.slow.set()

    def serve() -> None:
        play.wait(lambda: bool(play.said("here")))
        play.greet("one")
        play.wait(lambda: play.said("here")[-1]["run"] == "one")
        play.job(4)
        play.wait(lambda: play.worker.began == [4])
        signal.raise_signal(number)

    server = threading.Thread(target=serve)
    server.start()
    play.loop.run()  # in the main thread, which gets the signals
    server.join(10)
    assert play.worker.cancelled == [4]
    assert play.said("failed", "trained") == []
    assert play.broker.retained[HERE] == play.loop.session.absence().payload
    assert signal.getsignal(number) is before
