"""How a device handles messages, refusals and signals, without a SuperLink."""

import signal
import threading
import time
from pathlib import Path
from typing import cast

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed (extra `deploy`)")

from cabafl.deployment.flower.internals import DeviceConnection, Link, Refused, Retrier
from cabafl.deployment.flower.internals import device as device_internals
from flwr.app import Context, Error, Message, Metadata
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)

from cabafl.deployment import wire
from cabafl.deployment.device import loop
from cabafl.deployment.device.loop import Polling, serve
from cabafl.deployment.messages import TrainingJob
from cabafl.errors import UserError
from cabafl.methods.base import PLAIN

LINK = Link("127.0.0.1:1", insecure=True)


def message(number: int, kind: str = wire.TRAIN) -> Message:
    content = wire.encode_job(TrainingJob(number, np.zeros(3, dtype=np.float32), PLAIN))
    return make_message(Metadata(1, f"job-{number}", 1, 7, "", "", 1.8e9, 1e9, kind), content=content)


class Superlink:
    """Replaces a device's connection: raises the exceptions among the messages; None is an empty answer."""

    def __init__(self, messages: list[Message | Exception | None], retrier: Retrier) -> None:
        self.messages = messages
        self.retrier = retrier
        self.heartbeat = 0.0
        self.node_id = 7
        self.refusals = 0
        self.connected = 0
        self.closed = False
        self.sent: list[Message] = []
        self.handed_out = 0

    def connect(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Refused(412)
        self.connected += 1

    def beat(self) -> None: ...

    def receive(self, poll: float) -> Message | None:
        if not self.messages:
            if len(self.sent) == self.handed_out:
                self.retrier.stop.set()
            return None
        found = self.messages.pop(0)
        if isinstance(found, Exception):
            raise found
        self.handed_out += found is not None
        return found

    def send(self, reply: Message, seconds: float) -> bool:
        self.sent.append(reply)
        return True

    def close(self) -> None:
        self.closed = True


def run(
    monkeypatch: pytest.MonkeyPatch,
    messages: list[Message | Exception | None],
    handler: loop.Handler,
    refusals: int = 0,
) -> Superlink:
    retrier = Retrier()
    superlink = Superlink(messages, retrier)
    superlink.refusals = refusals
    monkeypatch.setattr(loop, "RETRY_CAP", 0.02)
    monkeypatch.setattr(loop, "DeviceConnection", lambda *_: cast(DeviceConnection, superlink))
    serve(LINK, handler, node_config={"partition-id": 3}, polling=Polling(0.001, 0.002), retrier=retrier)
    assert superlink.closed
    return superlink


def echo(received: Message, context: Context) -> Message:
    assert (context.node_config, context.node_id) == ({"partition-id": 3}, 7)
    return Message(content=received.content, reply_to=received)


def test_answers_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    superlink = run(monkeypatch, [message(1), None, message(2)], echo)
    assert [reply.metadata.reply_to_message_id for reply in superlink.sent] == ["job-1", "job-2"]


def test_features_are_reported_during_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def answer(received: Message, context: Context) -> Message:
        if received.metadata.message_type == wire.TRAIN:
            assert answered.wait(10), "the training would have to end first"
        else:
            answered.set()
        return echo(received, context)

    superlink = run(monkeypatch, [message(1), message(2, wire.FEATURES)], answer)
    assert [reply.metadata.reply_to_message_id for reply in superlink.sent] == ["job-2", "job-1"]


def test_a_failure_of_the_receiver_thread_ends_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="certificate"):
        run(monkeypatch, [UserError("the certificate is not accepted")], echo)


def test_a_failing_handler_reveals_the_class_of_the_exception_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(received: Message, context: Context) -> Message:
        raise ValueError("patient 17")

    [reply] = run(monkeypatch, [message(1)], fail).sent
    assert (reply.error.code, reply.error.reason) == (2, "ValueError")


def test_an_incomplete_message_is_answered_without_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    unread = Message(Error(3, "gone"), reply_to=message(1))
    [reply] = run(monkeypatch, [unread], echo).sent
    assert reply is unread


def test_a_forgotten_device_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    superlink = run(monkeypatch, [Refused(401), message(1), Refused(403), message(2)], echo)
    assert (superlink.connected, len(superlink.sent)) == (2, 2)


def test_a_device_still_counted_as_online_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    superlink = run(monkeypatch, [message(1)], echo, refusals=2)
    assert (superlink.connected, len(superlink.sent)) == (1, 1)


def test_a_device_refused_for_good_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="key is not registered"):
        run(monkeypatch, [], echo, refusals=1000)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_training_and_signs_off(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    def train(received: Message, context: Context) -> Message:
        signal.raise_signal(number)
        time.sleep(60)
        return echo(received, context)

    before = signal.getsignal(number)
    superlink = run(monkeypatch, [message(1), message(2)], train)
    assert superlink.sent == []
    assert signal.getsignal(number) is before


class HalfSent:
    """A SuperLink with a message whose last part never arrives."""

    def __init__(self, sent: Message) -> None:
        with no_object_id_recompute():
            sent.metadata.__dict__["_message_id"] = sent.object_id
            self.envelope = message_to_proto(remove_content_from_message(sent))
            self.tree = get_object_tree(sent)
            self.parts = {part_id: part.deflate() for part_id, part in get_all_nested_objects(sent).items()}
        self.asked = 0

    def PullMessages(self, _request: object) -> PullMessagesResponse:
        return PullMessagesResponse(messages_list=[self.envelope], message_object_trees=[self.tree])

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        if request.object_id == self.tree.object_id:
            self.asked += 1
            return PullObjectResponse(object_found=True, object_available=False)
        content = self.parts[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)


def test_half_a_message_does_not_block_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server was killed while sending: the device answers with an error and continues."""
    monkeypatch.setattr(device_internals, "STALL_TIMEOUT", 0.3)
    superlink = HalfSent(message(1))
    connection = DeviceConnection(LINK, None, 30.0, Retrier())
    monkeypatch.setattr(connection, "client", superlink)
    begun = time.monotonic()
    answer = connection.receive(poll=0.02)
    assert 0.3 < time.monotonic() - begun < 10.0
    assert superlink.asked > 3
    assert answer is not None
    assert answer.has_error()
    assert "its sender is gone" in str(answer.error.reason)
    assert answer.metadata.reply_to_message_id == superlink.tree.object_id


def test_keys_that_cannot_be_used(tmp_path: Path) -> None:
    for text in (b"", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"):
        (tmp_path / "key").write_bytes(text)
        with pytest.raises(UserError, match="private key"):
            DeviceConnection(LINK, tmp_path / "key", 30.0, Retrier())
