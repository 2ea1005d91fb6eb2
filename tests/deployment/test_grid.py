"""How the server handles complete, late, forged and oversized replies, without a SuperLink."""

import hashlib
import json
import threading
from collections.abc import Iterator
from typing import cast

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed (extra `deploy`)")

import httpx
from flwr.app import ArrayRecord, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from cabafl.deployment import wire
from cabafl.deployment.flower.grid import SETTLE_TIME, FleetGrid
from cabafl.deployment.flower.internals import Arrival, Halted, Refused, Retrier, RunConnection, UploadLost
from cabafl.deployment.messages import TrainingReply
from cabafl.errors import UserError

MAX_BYTES = 10_000


def metadata(reply_to: str = "job-1") -> Metadata:
    return Metadata(
        run_id=1,
        message_id="",
        src_node_id=7,
        dst_node_id=1,
        reply_to_message_id=reply_to,
        group_id="",
        created_at=1.8e9,
        ttl=60.0,
        message_type=wire.TRAIN,
    )


class Superlink:
    """Replaces the connection: replies by the message they answer, parts by ID (None: not uploaded yet)."""

    def __init__(self) -> None:
        self.replies: dict[str, Arrival] = {}
        self.parts: dict[str, bytes | None] = {}
        self.asked: list[list[str]] = []
        self.confirmed: list[str] = []

    def put(self, reply: Message, parts: dict[str, bytes] | None = None, says: Message | None = None) -> None:
        """Adds a reply; ``says`` is the message whose metadata the device gave to the SuperLink."""
        if parts is None:
            parts = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
        envelope = message_to_proto(remove_content_from_message(says or reply))
        envelope.metadata.message_id = list(parts)[-1]
        self.parts |= parts
        self.replies[envelope.metadata.reply_to_message_id] = Arrival(envelope, list(parts), {})

    def beat(self) -> None: ...

    def close(self) -> None: ...

    def arrivals(self, message_ids: list[str]) -> list[Arrival]:
        self.asked.append(message_ids)
        return [self.replies.pop(name) for name in message_ids if name in self.replies]

    def part(self, part_id: str) -> bytes | None:
        if part_id not in self.parts:
            raise UploadLost("gone")
        return self.parts[part_id]

    def confirm(self, arrival: Arrival) -> None:
        self.confirmed.append(arrival.envelope.metadata.message_id)


@pytest.fixture
def superlink() -> Superlink:
    return Superlink()


@pytest.fixture
def retrier() -> Retrier:
    return Retrier()


@pytest.fixture
def grid(superlink: Superlink, retrier: Retrier) -> Iterator[FleetGrid]:
    made = FleetGrid(cast(RunConnection, superlink), retrier, MAX_BYTES)
    yield made
    made.close()


def answer(reply_to: str = "job-1", length: int = 4) -> Message:
    content = wire.encode_reply(TrainingReply(np.arange(length, dtype=np.float32), 9.0, 1.0, None))
    return make_message(metadata(reply_to), content=content)


def test_reply_is_delivered_once_and_forgotten(superlink: Superlink, grid: FleetGrid) -> None:
    superlink.put(answer())
    [reply] = grid.pull_messages(["job-1", "job-2"])
    assert wire.decode_reply(reply.content, 4).seconds == 9
    assert superlink.confirmed == [reply.metadata.message_id]
    assert grid.pull_messages(["job-2"]) == []


def test_an_incomplete_reply_does_not_delay_others(superlink: Superlink, grid: FleetGrid) -> None:
    superlink.put(answer("job-1"))
    [piece] = [name for name, part in superlink.parts.items() if part and part.startswith(b"ConfigRecord")]
    late, superlink.parts[piece] = superlink.parts[piece], None
    superlink.put(answer("job-2", length=5))
    [first] = grid.pull_messages(["job-1", "job-2"])
    assert first.metadata.reply_to_message_id == "job-2"
    assert grid.pull_messages(["job-1"]) == []
    assert superlink.asked == [["job-1", "job-2"]], "the SuperLink hands a reply out once"
    superlink.parts[piece] = late
    [second] = grid.pull_messages(["job-1"])
    assert second.metadata.reply_to_message_id == "job-1"


def test_an_unfinished_upload_is_an_error(superlink: Superlink, grid: FleetGrid) -> None:
    superlink.put(answer())
    superlink.parts.clear()
    [reply] = grid.pull_messages(["job-1"])
    assert reply.error.code == 3


def test_error_of_a_device(superlink: Superlink, grid: FleetGrid) -> None:
    superlink.put(make_message(metadata(), error=Error(2, "one\nforged line" + 1000 * "!")))
    [reply] = grid.pull_messages(["job-1"])
    assert (reply.error.code, reply.metadata.reply_to_message_id) == (2, "job-1")
    assert str(reply.error.reason) == "one forged line" + 185 * "!"


def test_a_device_cannot_answer_for_another(superlink: Superlink, grid: FleetGrid) -> None:
    superlink.put(answer("job-of-another"), says=answer("job-1"))
    [reply] = grid.pull_messages(["job-1", "job-of-another"])
    assert reply.metadata.reply_to_message_id == "job-1"


def test_a_large_reply_is_refused_before_it_is_complete(superlink: Superlink, grid: FleetGrid) -> None:
    superlink.put(answer(length=3_000_000))
    [reply] = grid.pull_messages(["job-1"])
    assert reply.error.code == 0
    assert "larger" in str(reply.error.reason)


def test_too_many_parts(superlink: Superlink, grid: FleetGrid) -> None:
    superlink.put(answer(), {f"{number:064}": b"ArrayChunk  0\0" for number in range(1000)})
    [reply] = grid.pull_messages(["job-1"])
    assert "too many parts" in str(reply.error.reason)


def test_a_chunk_listed_many_times_does_not_fill_the_memory(superlink: Superlink, grid: FleetGrid) -> None:
    content = RecordDict({"a": ArrayRecord([np.zeros(4, np.float32)])})
    message = make_message(metadata(), content=content)
    parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    names = {part.split(b" ", 1)[0].decode(): name for name, part in parts.items()}
    text = {"dtype": "float32", "shape": [4], "stype": "float32-le", "arraychunk_ids": [0] * 100_000}
    body = json.dumps(text).encode()
    bomb = f"Array {names['ArrayChunk']} {len(body)}".encode() + b"\0" + body
    old, new = names["Array"], hashlib.sha256(bomb).hexdigest()
    forged = {name: part.replace(old.encode(), new.encode()) for name, part in parts.items() if name != old}
    superlink.put(answer(), {new: bomb, **forged})
    [reply] = grid.pull_messages(["job-1"])
    assert "arrays of" in str(reply.error.reason)


@pytest.mark.parametrize("junk", [b"", b"\0", b"Message  3\0abc", b"\xff\xfe\0", b"Pickle  4\0\x80\x04."])
def test_junk_is_an_error_reply(superlink: Superlink, grid: FleetGrid, junk: bytes) -> None:
    superlink.put(answer(), {"0" * 64: junk})
    [reply] = grid.pull_messages(["job-1"])
    assert reply.error.code == 0
    assert str(reply.error.reason).startswith("malformed")


def test_a_complete_object_of_another_kind_is_an_error_reply(superlink: Superlink, grid: FleetGrid) -> None:
    superlink.put(answer(), {name: part.deflate() for name, part in get_all_nested_objects(RecordDict()).items()})
    [reply] = grid.pull_messages(["job-1"])
    assert reply.error.reason == "malformed reply: not a message"


def test_no_replies_are_pulled_right_after_an_outage(
    superlink: Superlink, retrier: Retrier, grid: FleetGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("cabafl.deployment.flower.grid.time.monotonic", lambda: now)
    retrier.outage_ended = 999.0
    superlink.put(answer())
    assert grid.pull_messages(["job-1"]) == []
    now += SETTLE_TIME
    assert len(grid.pull_messages(["job-1"])) == 1


def status(code: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://localhost")
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(code, request=request))


def test_lost_connections_are_waited_out(retrier: Retrier) -> None:
    errors: list[Exception] = [httpx.ConnectError("refused"), httpx.ReadError("reset"), status(503), status(500)]

    def call(value: int) -> int:
        if errors:
            raise errors.pop(0)
        return value

    assert retrier.invoke(call, 3) == 3
    assert retrier.outage_ended is not None


def raising(error: Exception) -> None:
    raise error


def test_refusals_are_not_repeated(retrier: Retrier) -> None:
    with pytest.raises(Refused, match="401"):
        retrier.invoke(raising, status(401))
    with pytest.raises(UserError, match="certificate"):
        retrier.invoke(raising, httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"))


def test_stop_ends_the_waiting(retrier: Retrier) -> None:
    threading.Timer(0.2, retrier.stop.set).start()
    with pytest.raises(Halted):
        retrier.invoke(raising, httpx.ConnectError("refused"))
