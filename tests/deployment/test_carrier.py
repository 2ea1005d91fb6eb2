"""The server's side of the broker, with a broker in this process: what is published, what is believed, what is kept."""

import io
from typing import Any

import numpy as np
import pytest

from cabafl.deployment import wire
from cabafl.deployment.folder.layout import DEVICE_USER, SERVER
from cabafl.deployment.log import Log
from cabafl.deployment.messages import Declined, Described, Gone, Here, JobFailed, News, Nonsense, Trained
from cabafl.deployment.mqtt import carrier as module
from cabafl.deployment.mqtt.carrier import SETTLE_TIME, SHARE_FROM, MqttCarrier
from cabafl.deployment.mqtt.flood import MOST_MESSAGES, MUTE_TIME
from cabafl.deployment.mqtt.link import (
    EVERY_HERE,
    EVERY_UP,
    MODEL_TOPICS,
    QUERY_TOPIC,
    RUN_TOPIC,
    Account,
    down_topic,
    here_topic,
    sender_of,
    up_topic,
)
from cabafl.deployment.server.carrier import Delivery, RunOnFleet
from cabafl.errors import RunStopped
from cabafl.methods.base import Job, Weights
from tests.deployment.memory_broker import NOWHERE, MemoryBroker, MemoryLink

SIZE = SHARE_FROM  # numbers of a model: four times the bytes from which it is shared
MODEL: Weights = np.arange(SIZE, dtype=np.float32)
WIDTH = 5


class Bench:
    """A carrier that is connected to a broker in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, packet_limit: int | None = None, weights: int = SIZE) -> None:
        self.broker = MemoryBroker(packet_limit)
        monkeypatch.setattr(module, "Link", self.broker.link)
        self.now = 100.0
        self.lines = io.StringIO()
        self.weights = weights
        self.connect()

    def connect(self) -> None:
        """A new process."""
        run = RunOnFleet("run", "the greeting", self.weights, lambda kind: WIDTH, 60.0)
        account = Account("here", 1, SERVER, NOWHERE)
        self.carrier = MqttCarrier(account, run, Log(file=self.lines), clock=lambda: self.now)
        link = self.carrier.link
        assert isinstance(link, MemoryLink)
        self.link: MemoryLink = link
        assert self.news() == []
        self.broker.sent.clear()

    def deliveries(self) -> list[Delivery]:
        return self.carrier.receive(0.0)

    def news(self) -> list[News]:
        """What has arrived, confirmed at once."""
        found = self.deliveries()
        self.carrier.confirm(found)
        return [delivery.news for delivery in found]

    def says(self, kind: str, vector: Weights = MODEL[:0], device: int = 3, piece: int = 1 << 30, **more: Any) -> None:
        """A device publishes a message."""
        topic = here_topic(device) if kind in ("here", "gone") else up_topic(device)
        values = more if kind == "gone" else {"run": "run", **more}
        for packet in wire.encode(kind, values, vector, piece):
            self.broker.publish(topic, packet, retain=topic.endswith("here"))

    def trained(self, job: int, vector: Weights = MODEL, piece: int = 1 << 30) -> None:
        more: dict[str, Any] = {"has_loss": False, "loss": 0.0, "has_square": False, "square_loss": 0.0, "steps": 1}
        self.says("trained", vector, 3, piece, job=job, seconds=1.0, joules=2.0, epochs=1, **more)

    @property
    def unconfirmed(self) -> int:
        return len(self.broker.clients[SERVER].unconfirmed)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def job(number: int, device: int, weights: Weights = MODEL) -> Job:
    return Job(number, device, 0, 7, weights)


def read(packets: list[bytes], kind: str, length: int = 0) -> wire.WireRecord:
    assembler = wire.Assembler(1 << 30)
    [content] = [content for content in map(assembler.add, packets) if content is not None]
    return wire.decode(content, {kind: length})


# To devices


@pytest.mark.parametrize("device", [0, 7, 999, 1000, 9_999_999])
def test_a_topic_names_its_device(device: int) -> None:
    assert sender_of(up_topic(device)) == (device, "up")
    assert sender_of(here_topic(device)) == (device, "here")
    assert sender_of(down_topic(device)) is None, "only the server writes there"
    assert up_topic(device) == f"fleet/{DEVICE_USER.format(device)}/up"


@pytest.mark.parametrize("name", ["device-7", "device-0007", "device-0999", "device-00001000", "device-٠٠٧", "server"])
def test_a_name_that_no_certificate_has_is_no_device(name: str) -> None:
    assert sender_of(f"fleet/{name}/up") is None


def test_a_connection_announces_the_run_for_devices_that_come_later(bench: Bench) -> None:
    record = read([bench.broker.retained[RUN_TOPIC]], "greeting")
    assert record.values == {"run": "run", "greeting": "the greeting"}
    assert bench.link.client.patterns == [RUN_TOPIC, EVERY_HERE, EVERY_UP]
    bench.carrier.close(finished=False)
    assert RUN_TOPIC in bench.broker.retained
    bench.carrier.close(finished=True)
    assert RUN_TOPIC not in bench.broker.retained


def test_a_model_of_several_jobs_is_published_once_and_removed_with_the_last(bench: Bench) -> None:
    other = MODEL + 1
    bench.carrier.send([job(1, 1), job(2, 2), job(3, 3, other), job(4, 4)])
    shared = [sent for sent in bench.broker.sent if sent.topic.startswith(MODEL_TOPICS)]
    assert [(sent.retain, sent.expires) for sent in shared] == [(True, 60.0)]
    np.testing.assert_array_equal(read([shared[0].payload], "model", SIZE).vector, MODEL)
    for number in (1, 2, 4):
        [packet] = bench.broker.payloads(down_topic(number))
        assert read([packet], "job", SIZE).text("model") == shared[0].topic.removesuffix("/0")
        assert len(packet) < 1000
    alone = read(bench.broker.payloads(down_topic(3)), "job", SIZE)
    assert alone.text("model") == ""
    np.testing.assert_array_equal(alone.vector, other)
    bench.carrier.send([job(5, 5), job(6, 6)])
    assert sum(sent.topic.startswith(MODEL_TOPICS) for sent in bench.broker.sent) == 1, "still the same"
    bench.carrier.tidy({6})
    assert shared[0].topic in bench.broker.retained
    bench.carrier.tidy(set())
    assert shared[0].topic not in bench.broker.retained


def test_a_broker_that_lost_its_memory_gets_greeting_and_models_again(bench: Bench) -> None:
    bench.carrier.send([job(1, 1), job(2, 2)])
    bench.broker.retained.clear()
    bench.link.break_off()
    bench.link.open()
    bench.news()
    assert len(bench.broker.retained) == 2
    assert bench.carrier.connections == 2
    bench.carrier.close(finished=True)
    assert bench.broker.retained == {}


def test_small_models_travel_inside_their_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, weights=100)
    bench.carrier.send([job(1, 1, MODEL[:100]), job(2, 2, MODEL[:100])])
    assert {sent.topic for sent in bench.broker.sent} == {down_topic(1), down_topic(2)}


def test_messages_are_cut_to_the_limit_of_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, packet_limit=100_000)
    bench.carrier.send([job(1, 1)])
    packets = bench.broker.payloads(down_topic(1))
    assert len(packets) == 3
    assert all(len(packet) < 100_000 for packet in packets)
    np.testing.assert_array_equal(read(packets, "job", SIZE).vector, MODEL)
    shared = MODEL + 1
    bench.carrier.send([job(2, 1, shared), job(3, 2, shared)])
    pieces = [topic for topic in bench.broker.retained if topic.startswith(MODEL_TOPICS)]
    assert [topic.rpartition("/")[2] for topic in pieces] == ["0", "1", "2"], "a topic keeps one message"
    bench.carrier.tidy(set())
    assert not [topic for topic in bench.broker.retained if topic.startswith(MODEL_TOPICS)]
    bench.trained(1, piece=50_000)  # in pieces too; nobody has this job any more
    assert all(isinstance(news, Nonsense) for news in bench.news())


def test_cancellations_recalls_and_questions_expire(bench: Bench) -> None:
    bench.carrier.cancel(3, 8)
    bench.carrier.recall(job(9, 3))
    bench.carrier.ask(77, MODEL, "labels", 12.5)
    assert [(sent.topic, sent.retain, sent.expires) for sent in bench.broker.sent] == [
        (down_topic(3), False, 60.0),
        (down_topic(3), False, 60.0),
        (QUERY_TOPIC, False, 12.5),
    ]
    assert read([bench.broker.sent[0].payload], "cancel").count("job") == 8
    assert read([bench.broker.sent[1].payload], "recall").count("job") == 9
    assert read([bench.broker.sent[2].payload], "query", SIZE).values == {
        "run": "run",
        "query": 77,
        "features": "labels",
    }


# From devices


def test_presence(bench: Bench) -> None:
    bench.says("here", process="p", samples=10, declined="")
    bench.says("here", process="p", samples=10, declined="not now", device=4)
    bench.says("gone", process="p", device=5)
    bench.broker.publish(here_topic(6), b"", retain=True)
    assert bench.news() == [Here(3, "p", 10), Declined(4, "not now"), Gone(5, "p"), Gone(6)]


def test_presence_of_another_run_version_or_shape(bench: Bench) -> None:
    [packet] = wire.encode("here", {"run": "other", "process": "p", "samples": 1, "declined": ""})
    bench.broker.publish(here_topic(3), packet)
    assert bench.news() == []
    assert bench.unconfirmed == 0, "what means nothing is confirmed at once"
    bench.broker.publish(here_topic(3), packet[:4] + b"\x03" + packet[5:])
    assert bench.news() == [Declined(3, "protocol version 3; accepted: 2 (upgrade the older side)")]
    for piece in wire.encode("gone", {"process": "p" * 100}, piece=50)[:1]:
        bench.broker.publish(here_topic(3), piece)
    bench.broker.publish(here_topic(3), b"nonsense")
    assert bench.news() == [Nonsense(3, "its presence comes in pieces"), Nonsense(3, "not a CaBaFL message")]
    bench.says("here", process="p" * 500, samples=1, declined="")
    bench.says("here", process="p", samples=1, declined="x" * 5000)
    first, second = bench.news()
    assert isinstance(first, Here)
    assert isinstance(second, Declined)
    assert (len(first.process), len(second.text)) == (64, 200)


def test_answers_to_jobs(bench: Bench) -> None:
    bench.carrier.send([job(1, 3)])
    bench.trained(1)
    bench.says("failed", job=1, reason="unknown", text="")
    for reason in ("crash", "cancelled", "declined", "rejected", "whatever"):
        bench.says("failed", job=1, reason=reason, text="x" * 1000)
    upload, unknown, *failed = bench.news()
    assert isinstance(upload, Trained)
    assert (upload.device, upload.job, upload.reply.seconds, upload.reply.loss) == (3, 1, 1.0, None)
    np.testing.assert_array_equal(upload.reply.weights, MODEL)
    assert unknown == JobFailed(3, 1, "unknown", "")
    reasons = ["crash", "crash", "crash", "rejected", "rejected"]
    assert [news.reason for news in failed if isinstance(news, JobFailed)] == reasons
    bench.trained(1, MODEL[:9])
    bench.trained(1, np.full(SIZE, np.nan, np.float32))
    assert bench.news() == [
        JobFailed(3, 1, "rejected", f"36 bytes for {SIZE} numbers"),
        JobFailed(3, 1, "rejected", "numbers that are not finite"),
    ]


def test_features(bench: Bench) -> None:
    bench.carrier.ask(77, MODEL, "labels", 12.5)
    bench.says("features", MODEL[:WIDTH], query=77)
    bench.says("features", MODEL[:2], query=77)
    bench.says("refused", query=77, text="not today")
    first, *rest = bench.news()
    assert isinstance(first, Described)
    np.testing.assert_array_equal(first.features, MODEL[:WIDTH])
    assert rest == [Described(3, 77, None, "8 bytes for 5 numbers"), Described(3, 77, None, "not today")]


def test_only_a_device_with_a_job_may_send_something_large(bench: Bench) -> None:
    bench.trained(1)
    [news] = bench.news()
    assert isinstance(news, Nonsense)
    assert "bytes; accepted: up to" in news.text
    bench.carrier.send([job(1, 3)])
    bench.trained(1, np.zeros(3 * SIZE, np.float32))
    assert isinstance(bench.news()[0], Nonsense), "nor one with a job something much larger than a model"
    bench.trained(1)
    assert isinstance(bench.news()[0], Trained)
    bench.carrier.tidy(set())
    bench.trained(1)
    assert isinstance(bench.news()[0], Nonsense)
    bench.connect()
    bench.carrier.expect([job(1, 3)])
    bench.trained(1)
    assert isinstance(bench.news()[0], Trained), "a job of an earlier process"


@pytest.mark.parametrize("packets", [[(5, 6), (0, 2)], [(1, 2), (0, 1)], [(0, 2), (0, 2), (1, 2)]])
def test_pieces_that_do_not_fit_together_end_nothing(bench: Bench, packets: list[tuple[int, int]]) -> None:
    head = wire._HEAD
    for index, count in packets:
        bench.broker.publish(up_topic(3), head.pack(b"CBFL", 1, index, count, 2, bytes(16)) + b"x")
    assert all(isinstance(news, Nonsense) for news in bench.news())


def test_messages_of_another_run_or_topic_are_ignored(bench: Bench) -> None:
    [packet] = wire.encode("failed", {"run": "other", "job": 1, "reason": "crash", "text": ""})
    bench.broker.publish(up_topic(3), packet)
    for topic in ("fleet/device-3/up", "fleet/device-0003/up", "fleet/server/up", "fleet/x/here"):
        bench.broker.publish(topic, packet)
    assert bench.news() == []
    assert bench.unconfirmed == 0


def test_a_message_comes_again_until_it_is_confirmed(bench: Bench) -> None:
    bench.carrier.send([job(1, 3)])
    bench.trained(1)
    assert len(bench.deliveries()) == 1
    assert bench.unconfirmed == 1
    bench.carrier.close(finished=False)
    bench.carrier = MqttCarrier(Account("here", 1, SERVER, NOWHERE), bench.carrier.run, Log(file=bench.lines))
    bench.carrier.expect([job(1, 3)])
    again = bench.deliveries()
    assert [type(delivery.news) for delivery in again] == [Trained]
    bench.carrier.confirm(again)
    assert bench.unconfirmed == 0


def test_pieces_are_confirmed_but_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.carrier.send([job(1, 3)])
    bench.trained(1, piece=100_000)
    [delivery] = bench.deliveries()
    assert isinstance(delivery.news, Trained)
    assert bench.unconfirmed == 1
    bench.carrier.confirm([delivery])
    assert bench.unconfirmed == 0


# The connection


def test_the_network_is_steady_some_time_after_a_connection(bench: Bench) -> None:
    assert not bench.carrier.steady
    bench.now += SETTLE_TIME + 1
    assert bench.carrier.steady
    bench.link.break_off("the line is cut")
    assert bench.news() == []
    assert not bench.carrier.steady
    assert "broker: the line is cut" in bench.lines.getvalue()
    bench.link.open()
    bench.news()
    assert not bench.carrier.steady
    assert bench.carrier.connections == 2


def greeting(run: str) -> bytes:
    [packet] = wire.encode("greeting", {"run": run, "greeting": ""})
    return packet


def test_of_two_servers_on_the_same_fleet_the_one_that_came_last_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.broker.publish(RUN_TOPIC, greeting("earlier"), retain=True)
    assert bench.news() == [], "an interrupted run may have left it"
    bench.link.break_off()
    bench.news()
    bench.broker.retained[RUN_TOPIC] = greeting("earlier")
    bench.link.open()
    with pytest.raises(RunStopped, match="another server has started a run on this fleet"):
        bench.deliveries()
    left = [payload for _, payload in bench.link.client.unconfirmed.values()]
    assert greeting("earlier") not in left, "it would end the next run as well"


def test_the_server_that_was_there_first_goes_on(bench: Bench) -> None:
    for run in (greeting("later"), b"", greeting("run"), b"nonsense"):
        bench.link.break_off()
        bench.news()
        bench.broker.retained[RUN_TOPIC] = run
        bench.link.open()
        bench.news()
        assert bench.news() == []
    bench.link.break_off()
    bench.news()
    assert "another server may use the certificate of this fleet" in bench.lines.getvalue()


def test_waiting_ends_with_a_signal(bench: Bench) -> None:
    bench.carrier.wake()
    assert bench.carrier.receive(60.0) == []


def test_a_flood_is_muted_for_a_while_and_then_heard_again(bench: Bench) -> None:
    bench.says("here", device=2, process="q", samples=4, declined="")
    for _ in range(3 * MOST_MESSAGES):
        bench.says("failed", job=1, reason="crash", text="")
    news = []
    while found := bench.news():
        news += found
    assert [each.device for each in news if isinstance(each, Declined)] == [3]
    assert sum(isinstance(each, JobFailed) for each in news) < 2 * MOST_MESSAGES
    assert bench.unconfirmed == 0
    bench.says("gone", device=3, process="p")
    bench.says("gone", device=2, process="q")
    assert bench.news() == [Gone(2, "q")], "others are heard"
    bench.now += MUTE_TIME + 1
    bench.carrier.tidy(())
    assert bench.news() == [Gone(3, "p")]


def test_a_steady_device_is_not_muted(bench: Bench) -> None:
    for _ in range(3 * MOST_MESSAGES // 100):
        for _ in range(100):
            bench.says("failed", job=1, reason="crash", text="")
        assert len(bench.news()) == 100
        bench.now += 1.0
