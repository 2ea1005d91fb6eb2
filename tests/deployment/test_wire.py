"""Messages are read as they were written, and nothing else is accepted."""

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cabafl.deployment import wire
from cabafl.deployment.messages import TrainingReply
from cabafl.deployment.wire import Assembler, Malformed, OtherVersion, WireRecord
from cabafl.engine.core import FEATURE_BYTES
from cabafl.methods.base import PLAIN, Objective, Weights

LIMIT = 1 << 20
HEAD = struct.Struct("<4sBxHHQ16s")
vectors = hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32))
amounts = st.floats(0, 1e300, allow_nan=False)
counts = st.integers(0, wire.LARGEST_COUNT)
texts = st.text(max_size=200)
EXAMPLES: dict[type, st.SearchStrategy[Any]] = {int: counts, float: amounts, str: texts, bool: st.booleans()}


def joined(packets: list[bytes], limit: int = LIMIT) -> memoryview:
    """The content of a message whose packets arrive one after the other."""
    assembler = Assembler(limit)
    found = [content for content in map(assembler.add, packets) if content is not None]
    assert len(found) == 1
    return found[0]


def through(
    kind: str, values: dict[str, wire.Value], vector: Weights, piece: int = 1 << 30, length: int | None = None
) -> WireRecord:
    lengths = {kind: len(vector) if length is None else length}
    return wire.decode(joined(wire.encode(kind, values, vector, piece)), lengths)


# Round trips


@given(st.data(), st.sampled_from(sorted(wire.SCHEMAS)), vectors, st.integers(1, 300))
def test_every_kind_arrives_as_it_was_sent(data: st.DataObject, kind: str, vector: Weights, piece: int) -> None:
    values = {name: data.draw(EXAMPLES[of]) for name, of in wire.SCHEMAS[kind].items()}
    length = len(vector)
    if kind not in wire.VECTORS:
        vector = vector[:0]
    elif kind == "job":
        vector = np.tile(vector, (not values["model"]) + values["correction"])
    record = through(kind, values, vector, piece, length)
    assert (record.kind, record.values, record.problem) == (kind, values, "")
    np.testing.assert_array_equal(record.vector, vector)
    assert record.vector.flags.aligned


flags = st.booleans()
objectives = st.builds(Objective, st.none() | st.integers(0, 1000), amounts, amounts, flags, flags, flags)


@given(counts, objectives, vectors, flags, st.sampled_from(["", "fleet/models/x"]))
def test_a_job(number: int, objective: Objective, weights: Weights, corrected: bool, topic: str) -> None:
    correction = 2 * weights if corrected else None
    values = wire.job_values("r", number, objective, topic, corrected)
    sent = wire.job_vector(weights[:0] if topic else weights, correction)
    record = through("job", values, sent, length=len(weights))
    job = wire.training_job(record, len(weights))
    assert (job.number, job.objective, record.problem) == (number, objective, "")
    np.testing.assert_array_equal(job.weights, weights[:0] if topic else weights)
    if correction is None:
        assert job.correction is None
    else:
        np.testing.assert_array_equal(job.correction, correction)


@pytest.mark.parametrize(
    ("topic", "corrected", "right"), [("", False, 1), ("", True, 2), ("x", False, 0), ("x", True, 1)]
)
def test_a_job_has_exactly_the_vectors_that_it_names(topic: str, corrected: bool, right: int) -> None:
    values = wire.job_values("r", 1, PLAIN, topic, corrected)
    for count in range(4):
        record = through("job", values, np.ones(4 * count, np.float32), length=4)
        assert record.problem == ("" if count == right else f"{16 * count} bytes for {4 * right} numbers")
    for length in (4 * right - 1, 4 * right + 1):
        if length > 0:
            assert through("job", values, np.ones(length, np.float32), length=4).problem


losses = st.none() | st.floats(0) | st.just(float("nan"))


@given(vectors, amounts, amounts, losses, losses, counts, counts)
def test_an_upload_and_only_a_finite_loss(
    weights: Weights, seconds: float, joules: float, loss: float | None, square: float | None, steps: int, epochs: int
) -> None:
    values = wire.reply_values("r", 7, TrainingReply(weights, seconds, joules, loss, square, steps, epochs))
    reply = wire.reply_of(through("trained", values, weights))
    assert (reply.seconds, reply.joules, reply.steps, reply.epochs) == (seconds, joules, steps, epochs)
    assert reply.loss == (loss if loss is not None and np.isfinite(loss) else None)
    assert reply.square_loss == (square if square is not None and np.isfinite(square) else None)
    np.testing.assert_array_equal(reply.weights, weights)


def test_a_feature_vector_takes_the_bytes_that_are_counted() -> None:
    values: dict[str, wire.Value] = {"run": "r", "query": 1}
    [one], [many] = (wire.encode("features", values, np.ones(n, dtype=np.float32)) for n in (1, 513))
    assert len(many) - len(one) == 512 * FEATURE_BYTES


def test_a_job_has_these_fields_and_reveals_no_slot_version_or_device() -> None:
    """A job depends only on run, number, objective and model, so it does not tell where its model has been."""
    weights = np.arange(3, dtype=np.float32)
    [packet] = wire.encode("job", wire.job_values("run", 7, PLAIN), weights)
    content = bytes(joined([packet]))
    [size] = struct.unpack_from("<I", content)
    assert json.loads(content[4 : 4 + size]) == {
        "kind": "job",
        "run": "run",
        "job": 7,
        "epochs": -1,
        "lr_scale": 1.0,
        "prox": 0.0,
        "report_loss": False,
        "report_square": False,
        "hold": False,
        "correction": False,
        "model": "",
    }
    assert content[4 + size :] == weights.tobytes()
    assert [packet] == wire.encode("job", wire.job_values("run", 7, PLAIN), weights.copy())


# What cannot be sent


@pytest.mark.parametrize("vector", [np.zeros(3), np.zeros((2, 2), np.float32)])
def test_only_flat_float32_is_sent(vector: Any) -> None:
    with pytest.raises(TypeError, match="flat float32"):
        wire.encode("features", {"run": "r", "query": 1}, vector)


@pytest.mark.parametrize("values", [{}, {"job": 1}, {"run": "r", "job": 1.0}, {"run": "r", "job": 1, "slot": 2}])
def test_only_the_values_of_the_schema_are_sent(values: Any) -> None:
    with pytest.raises(TypeError, match="cancel"):
        wire.encode("cancel", values)


def test_numbers_that_are_not_finite_are_not_sent_as_values() -> None:
    values = wire.reply_values("r", 1, TrainingReply(np.zeros(1, np.float32), float("nan"), 0.0, None))
    with pytest.raises(ValueError, match="JSON"):
        wire.encode("trained", values, np.zeros(1, np.float32))


# Packets


def small(piece: int = 1 << 30, start: float = 0.0) -> list[bytes]:
    return wire.encode("features", {"run": "r", "query": 1}, np.arange(start, start + 50, dtype=np.float32), piece)


def head(index: int = 0, count: int = 2, total: int = 100, digest: bytes = bytes(16), version: int = 2) -> bytes:
    return HEAD.pack(b"CBFL", version, index, count, total, digest)


PACKETS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not a CaBaFL message"),
    "another protocol": (b"GET / HTTP/1.1\r\n", "not a CaBaFL message"),
    "only the magic": (b"CBFL", "not a CaBaFL message"),
    "half a head": (small()[0][:20], "too short"),
    "a byte too few": (small()[0][:-1], "bytes instead of"),
    "a byte too many": (small()[0] + b"x", "bytes instead of"),
    "no packet at all": (head(0, 0), "piece 0 of 0"),
    "a piece behind the last": (head(2, 2), "piece 2 of 2"),
    "too many pieces": (head(0, wire.MOST_PIECES + 1), f"piece 0 of {wire.MOST_PIECES + 1}"),
    "larger than accepted": (head(total=LIMIT + 1), f"{LIMIT + 1} bytes; accepted: up to {LIMIT}"),
    "larger than anything": (head(total=(1 << 64) - 1), "accepted: up to"),
    "more than it announces": (head(total=3) + bytes(4), "more than 3 bytes"),
}


@pytest.mark.parametrize("name", PACKETS)
def test_a_wrong_packet_is_refused_in_one_line(name: str) -> None:
    packet, line = PACKETS[name]
    with pytest.raises(Malformed, match=line):
        Assembler(LIMIT).add(packet)


@pytest.mark.parametrize("version", [0, 1, 3, 255])
def test_another_version_is_named(version: int) -> None:
    with pytest.raises(OtherVersion, match=rf"protocol version {version}; accepted: 2 \(upgrade the older side\)"):
        Assembler(LIMIT).add(head(version=version))


@given(st.permutations(range(9)), st.lists(st.integers(0, 8), max_size=9))
def test_pieces_may_come_in_any_order_and_twice(order: list[int], again: list[int]) -> None:
    packets = small(28)
    assert len(packets) == 9
    assembler = Assembler(LIMIT)
    found = []
    for place in range(9):
        found.append(assembler.add(packets[order[place]]))
        if place < 8:
            for other in again[:place]:
                if other in order[: place + 1]:
                    assert assembler.add(packets[other]) is None
    assert found[:8] == [None] * 8
    assert found[8] == joined(small())


def test_another_message_replaces_an_unfinished_one() -> None:
    first, second = small(100), small(100, start=5.0)
    assembler = Assembler(LIMIT)
    assert assembler.add(first[0]) is None
    assert [content is None for content in map(assembler.add, second)] == [True, True, False]
    assert [content is None for content in map(assembler.add, first[1:])] == [True, True]
    assert assembler.add(small()[0]) is not None, "a message of one packet comes between them"
    assert assembler.add(first[0]) is not None


def test_pieces_that_disagree_about_the_message_are_never_put_together() -> None:
    """The same digest with another number of pieces once ended the server with a KeyError."""
    assembler = Assembler(LIMIT)
    assert assembler.add(head(5, 6) + b"x") is None
    assert assembler.add(head(0, 2) + b"x") is None
    assert assembler.add(head(1, 2, total=90) + b"x") is None
    assert assembler.add(head(0, 2, digest=b"y" * 16) + b"x") is None


def test_a_digest_that_does_not_match() -> None:
    packets = small(100)
    broken = packets[1][:-1] + bytes([packets[1][-1] ^ 1])
    assembler = Assembler(LIMIT)
    for packet in (packets[0], broken):
        assert assembler.add(packet) is None
    with pytest.raises(Malformed, match="digest"):
        assembler.add(packets[2])
    assert joined(packets) is not None, "the same message sent again is read"
    missing = [packets[0], packets[1], head(2, 3, *HEAD.unpack_from(packets[0])[4:])]
    with pytest.raises(Malformed, match="digest"):
        joined(missing)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(0, 60), st.binary(max_size=70))))
def test_an_assembler_keeps_no_more_than_its_limit(packets: list[tuple[int, int, int, bytes]]) -> None:
    assembler = Assembler(50)
    for index, count, total, body in packets:
        with suppress(Malformed):
            assembler.add(head(index, count, total) + body)
        assert sum(map(len, assembler._pieces.values())) <= 50


# Records


def content(values: Any, vector: bytes = b"") -> bytes:
    text = values if isinstance(values, bytes) else json.dumps(values).encode()
    return struct.pack("<I", len(text)) + text + vector


GOOD = {
    "kind": "trained",
    "run": "r",
    "job": 3,
    "seconds": 1.5,
    "joules": 2.5,
    "has_loss": True,
    "loss": -0.5,
    "has_square": True,
    "square_loss": 0.25,
    "steps": 7,
    "epochs": 2,
}
FOUR = np.arange(4, dtype="<f4").tobytes()
LENGTHS = {"trained": 4, "ready": 0, "failed": 0, "gone": 0}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in GOOD.items() if key != name}


RECORDS: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "half a size": lambda: b"\0\0",
    "more values than bytes": lambda: struct.pack("<I", 100) + b"{}",
    "huge values": lambda: content(b" " * (wire.LONGEST_VALUES + 1)),
    "no JSON": lambda: content(b"{'a': 1}"),
    "no UTF-8": lambda: content(b'{"kind": "\xff"}'),
    "a pickle": lambda: content(b"\x80\x04K\x01."),
    "deep JSON": lambda: content(b"[" * 60_000),
    "deep JSON that ends": lambda: content(b'{"kind":' + b"[" * 30_000 + b"]" * 30_000 + b"}"),
    "a list": lambda: content([1, 2]),
    "a number": lambda: content(7),
    "no kind": lambda: content(without("kind")),
    "a kind that is a list": lambda: content({**GOOD, "kind": ["trained"]}),
    "an unknown kind": lambda: content({**GOOD, "kind": "x" * 5000}),
    "a kind of the other side": lambda: content({"kind": "cancel", "run": "r", "job": 1}),
    "a value missing": lambda: content(without("seconds"), FOUR),
    "a value too many": lambda: content({**GOOD, "path": "/etc"}, FOUR),
    "many values": lambda: content({**GOOD, **{f"x{n}": n for n in range(2000)}}, FOUR),
    "text for a number": lambda: content({**GOOD, "seconds": "1.5"}, FOUR),
    "a list for a number": lambda: content({**GOOD, "seconds": [1.5]}, FOUR),
    "null": lambda: content({**GOOD, "seconds": None}, FOUR),
    "a count for an amount": lambda: content({**GOOD, "seconds": 1}, FOUR),
    "an amount for a count": lambda: content({**GOOD, "job": 3.0}, FOUR),
    "truth for a count": lambda: content({**GOOD, "job": True}, FOUR),
    "a count for truth": lambda: content({**GOOD, "has_loss": 1}, FOUR),
    "a negative count": lambda: content({**GOOD, "job": -1}, FOUR),
    "a huge count": lambda: content({**GOOD, "job": wire.LARGEST_COUNT + 1}, FOUR),
    "a count of 4000 digits": lambda: content({**GOOD, "job": 10**4000}, FOUR),
    "a count of 40000 digits": lambda: content(json.dumps(GOOD).replace("3", "3" * 40_000).encode(), FOUR),
    "negative time": lambda: content({**GOOD, "seconds": -0.5}, FOUR),
    "NaN": lambda: content({**GOOD, "seconds": float("nan")}, FOUR),
    "infinite": lambda: content({**GOOD, "joules": float("inf")}, FOUR),
    "beyond float64": lambda: content(json.dumps(GOOD).replace("1.5", "1e999").encode(), FOUR),
    "a loss that is not finite": lambda: content({**GOOD, "loss": float("-inf")}, FOUR),
    "a negative square": lambda: content({**GOOD, "square_loss": -0.25}, FOUR),
    "half a step": lambda: content({**GOOD, "steps": 0.5}, FOUR),
    "a negative number of steps": lambda: content({**GOOD, "steps": -1}, FOUR),
    "an order of the server": lambda: content({"kind": "fetch", "run": "r", "job": 1}),
    "ready without its costs": lambda: content({"kind": "ready", "run": "r", "job": 1}),
    "ready with a vector": lambda: content(
        {"kind": "ready", "run": "r", "job": 1, "seconds": 1.0, "joules": 0.0}, FOUR
    ),
    "a long text": lambda: content({**GOOD, "run": "x" * (wire.LONGEST_TEXT + 1)}, FOUR),
    "a vector where none belongs": lambda: content({"kind": "gone", "process": "p"}, FOUR),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_wrong_record_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(Malformed) as caught:
        wire.decode(RECORDS[name](), LENGTHS)
    assert 0 < len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_the_record_that_the_wrong_ones_are_made_from_is_good() -> None:
    assert wire.reply_of(wire.decode(content(GOOD, FOUR), LENGTHS)).loss == -0.5


@pytest.mark.parametrize("vector", [b"", FOUR[:-1], FOUR[:-4], FOUR + FOUR, bytes(32)])
def test_a_vector_of_another_length_is_a_problem_of_its_job(vector: bytes) -> None:
    record = wire.decode(content(GOOD, vector), LENGTHS)
    assert record.problem == f"{len(vector)} bytes for 4 numbers"
    assert record.count("job") == 3
    assert not len(record.vector)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_vector_that_is_not_finite_is_a_problem_of_its_job(number: float) -> None:
    record = wire.decode(content(GOOD, np.array([1, number, 2, 3], "<f4").tobytes()), LENGTHS)
    assert (record.problem, len(record.vector)) == ("numbers that are not finite", 0)


def test_epochs_have_a_limit() -> None:
    record = through("job", wire.job_values("r", 1, Objective(1_000_001)), np.zeros(1, np.float32))
    with pytest.raises(Malformed, match="epochs = 1000001"):
        wire.objective_of(record)
    values = {**wire.job_values("r", 1, PLAIN), "epochs": -2}
    with pytest.raises(Malformed, match="epochs = -2"):
        through("job", values, np.zeros(1, np.float32))


scalars: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just([]) | st.just({})
)


@given(st.dictionaries(st.sampled_from([*GOOD, "x"]), scalars, max_size=8) | st.just(GOOD), st.binary(max_size=20))
def test_random_records_are_read_or_refused(values: dict[str, Any], vector: bytes) -> None:
    for kind in ("trained", "failed", "here", "job"):
        with suppress(Malformed):
            wire.decode(content({**values, "kind": kind}, vector), {kind: 2})


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    for packet in (data, b"CBFL\2" + data):
        with suppress(Malformed):
            Assembler(LIMIT).add(packet)
    with suppress(Malformed):
        wire.decode(data, LENGTHS)
