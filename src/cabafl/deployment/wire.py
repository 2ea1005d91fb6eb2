"""The bytes of a message: one record of a few named values and at most one flat float32 vector (little-endian).

A message is cut into packets of bounded size. A packet starts with its protocol version, so that both sides can refuse
another version in a clear sentence. Both sides read strictly: sizes are checked before memory is allocated, every field
has a type and a range, and nothing is unpickled. A job does not reveal where its model has been: all its fields are
listed here.
"""

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cabafl.deployment.messages import TrainingJob, TrainingReply
from cabafl.methods.base import Objective, Weights

PROTOCOL = 2
LARGEST_COUNT = 1 << 53  # exact as float64
LONGEST_TEXT = 20_000  # characters
LONGEST_VALUES = 64 << 10  # bytes of all values of a record
MOST_PIECES = 10_000
GREETING_LIMIT = 1 << 20  # bytes
_MAGIC = b"CBFL"
_START = struct.Struct("<4sB")  # the same in every version
_HEAD = struct.Struct("<4sBxHHQ16s")  # magic, version, number of this packet, packets, bytes of the message, digest
_SIZE = struct.Struct("<I")  # bytes of the values
OVERHEAD = _HEAD.size + _SIZE.size + LONGEST_VALUES  # most bytes of a packet besides its vector

Value = int | float | str | bool
VECTORS = frozenset({"query", "model", "job", "trained", "features"})  # kinds with a vector
SCHEMAS: dict[str, dict[str, type]] = {
    # to all devices
    "greeting": {"run": str, "greeting": str},
    "query": {"run": str, "query": int, "features": str},
    "model": {},
    # to one device
    "job": {
        "run": str,
        "job": int,
        "epochs": int,  # -1: as the experiment says
        "lr_scale": float,
        "prox": float,
        "report_loss": bool,
        "report_square": bool,
        "hold": bool,
        "correction": bool,  # the vector of this record ends with one
        "model": str,  # topic of the model; empty: the vector of this record begins with it
    },
    "cancel": {"run": str, "job": int},
    "finish": {"run": str, "job": int},
    "fetch": {"run": str, "job": int},
    "recall": {"run": str, "job": int},
    # from a device
    "here": {"run": str, "process": str, "samples": int, "declined": str},
    "gone": {"process": str},
    "trained": {
        "run": str,
        "job": int,
        "seconds": float,
        "joules": float,
        "has_loss": bool,
        "loss": float,
        "has_square": bool,
        "square_loss": float,
        "steps": int,
        "epochs": int,
    },
    "ready": {"run": str, "job": int, "seconds": float, "joules": float},
    "failed": {"run": str, "job": int, "reason": str, "text": str},
    "features": {"run": str, "query": int},
    "refused": {"run": str, "query": int, "text": str},
}


class Malformed(ValueError):
    """Bytes that are not a message, or one of the wrong form; the text is one line."""


class OtherVersion(Malformed):
    """A message of another version of the protocol."""

    def __init__(self, version: int) -> None:
        super().__init__(f"protocol version {version}; accepted: {PROTOCOL} (upgrade the older side)")


@dataclass(frozen=True)
class WireRecord:
    """One message. ``problem`` says what is wrong with its vector, which is then empty."""

    kind: str
    values: Mapping[str, Value]
    vector: Weights
    problem: str = ""

    def text(self, name: str) -> str:
        """A value that is a string by its schema."""
        return str(self.values[name])

    def count(self, name: str) -> int:
        """A value that is a count by its schema."""
        return int(self.values[name])

    def amount(self, name: str) -> float:
        """A value that is a float by its schema."""
        return float(self.values[name])


_EMPTY: Weights = np.zeros(0, dtype=np.float32)


def encode(kind: str, values: Mapping[str, Value], vector: Weights = _EMPTY, piece: int = 1 << 62) -> list[bytes]:
    """The packets of a message, each with at most ``piece`` bytes of its content."""
    schema = SCHEMAS[kind]
    if {name: type(value) for name, value in values.items()} != schema:
        raise TypeError(f"{kind}: {dict(values)!r:.200}; accepted: {schema}")
    if vector.dtype != np.float32 or vector.ndim != 1:
        raise TypeError(f"{vector.dtype} of shape {vector.shape}; accepted: a flat float32 vector")
    text = json.dumps({"kind": kind, **values}, separators=(",", ":"), allow_nan=False).encode()
    data = np.ascontiguousarray(vector, dtype="<f4").data.cast("B") if len(vector) else memoryview(b"")
    total = _SIZE.size + len(text) + len(data)
    count = -(-total // piece)
    if count == 1:
        return [b"".join((_HEAD.pack(_MAGIC, PROTOCOL, 0, 1, total, bytes(16)), _SIZE.pack(len(text)), text, data))]
    whole = memoryview(b"".join((_SIZE.pack(len(text)), text, data)))
    digest = _digest(whole)
    return [
        b"".join((_HEAD.pack(_MAGIC, PROTOCOL, i, count, total, digest), whole[i * piece : (i + 1) * piece]))
        for i in range(count)
    ]


def decode(content: bytes | memoryview, lengths: Mapping[str, int]) -> WireRecord:
    """Reads the content of a message. ``lengths`` gives the kinds that are accepted here and the length of their
    vectors."""
    content = memoryview(content)
    if len(content) < _SIZE.size:
        raise Malformed("too short")
    [size] = _SIZE.unpack_from(content)
    if size > LONGEST_VALUES or _SIZE.size + size > len(content):
        raise Malformed(f"{size} bytes of values")
    kind, values = _read_values(bytes(content[_SIZE.size : _SIZE.size + size]), lengths)
    length = lengths[kind]
    if kind == "job":  # a model, unless it is elsewhere, and a correction, if there is one
        length *= (not values["model"]) + bool(values["correction"])
    vector, problem = _read_vector(content[_SIZE.size + size :], kind, length)
    return WireRecord(kind, values, vector, problem)


class Assembler:
    """Puts the packets of one sender together again. It holds one unfinished message of at most ``limit`` bytes; the
    first packet of another message replaces it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._message: tuple[int, int, bytes] | None = None  # number of packets, bytes and digest
        self._pieces: dict[int, bytes] = {}
        self._size = 0

    def add(self, packet: bytes) -> memoryview | None:
        """Returns the content of a message that is complete now. Raises `Malformed`."""
        index, count, total, digest = self._head(packet)
        body = memoryview(packet)[_HEAD.size :]
        if count == 1:
            if len(body) != total:
                raise Malformed(f"{len(body)} bytes instead of {total}")
            return body
        if (count, total, digest) != self._message:
            self.clear()
            self._message = count, total, digest
        if index not in self._pieces:
            self._size += len(body)
            self._pieces[index] = bytes(body)
        if self._size > total:
            self.clear()
            raise Malformed(f"more than {total} bytes")
        if len(self._pieces) < count:
            return None
        whole = b"".join(self._pieces[i] for i in range(count))
        self.clear()
        if len(whole) != total or _digest(whole) != digest:
            raise Malformed("damaged: the digest of its pieces does not match")
        return memoryview(whole)

    def clear(self) -> None:
        """Drops the unfinished message."""
        self._message, self._pieces, self._size = None, {}, 0

    def _head(self, packet: bytes) -> tuple[int, int, int, bytes]:
        check_version(packet)
        if len(packet) < _HEAD.size:
            raise Malformed("too short")
        _, _, index, count, total, digest = _HEAD.unpack_from(packet)
        if total > self.limit:
            raise Malformed(f"{total} bytes; accepted: up to {self.limit}")
        if not 0 < count <= MOST_PIECES or index >= count:
            raise Malformed(f"piece {index} of {count}")
        return index, count, total, digest


def job_values(
    run: str, number: int, objective: Objective, model: str = "", correction: bool = False
) -> dict[str, Value]:
    """The values of a job. Slot, version and earlier devices are not among them: a job does not reveal where its model
    has been."""
    return {
        "run": run,
        "job": number,
        "epochs": -1 if objective.epochs is None else objective.epochs,
        "lr_scale": float(objective.lr_scale),
        "prox": float(objective.prox),
        "report_loss": objective.report_loss,
        "report_square": objective.report_square,
        "hold": objective.hold,
        "correction": correction,
        "model": model,
    }


def job_vector(weights: Weights, correction: Weights | None) -> Weights:
    """The vector of a job; empty weights if the model is elsewhere."""
    return weights if correction is None else np.concatenate([weights, correction])


def training_job(record: WireRecord, length: int) -> TrainingJob:
    """The reverse of `job_values` and `job_vector`, for models of this length; its weights are empty if the model is
    elsewhere."""
    vector, correction = record.vector, None
    if record.values["correction"] and len(vector):
        vector, correction = vector[:-length].copy(), vector[-length:].copy()
    return TrainingJob(record.count("job"), vector, objective_of(record), correction)


def objective_of(record: WireRecord) -> Objective:
    """How a device trains for a job."""
    epochs = record.count("epochs")
    if epochs > 1_000_000:
        raise Malformed(f"epochs = {epochs}")
    return Objective(
        None if epochs == -1 else epochs,
        record.amount("lr_scale"),
        record.amount("prox"),
        bool(record.values["report_loss"]),
        bool(record.values["report_square"]),
        bool(record.values["hold"]),
    )


def reply_values(run: str, number: int, reply: TrainingReply) -> dict[str, Value]:
    """The values of an upload; a loss that is not finite is left out."""
    known, squared = (loss is not None and math.isfinite(loss) for loss in (reply.loss, reply.square_loss))
    return {
        "run": run,
        "job": number,
        "seconds": float(reply.seconds),
        "joules": float(reply.joules),
        "has_loss": known,
        "loss": float(reply.loss or 0.0) if known else 0.0,
        "has_square": squared,
        "square_loss": float(reply.square_loss or 0.0) if squared else 0.0,
        "steps": reply.steps,
        "epochs": reply.epochs,
    }


def reply_of(record: WireRecord) -> TrainingReply:
    """The reverse of `reply_values`."""
    loss = record.amount("loss") if record.values["has_loss"] else None
    square = record.amount("square_loss") if record.values["has_square"] else None
    return TrainingReply(
        record.vector,
        record.amount("seconds"),
        record.amount("joules"),
        loss,
        square,
        record.count("steps"),
        record.count("epochs"),
    )


def check_version(packet: bytes) -> None:
    """Raises `OtherVersion` for a packet of another protocol version and `Malformed` for foreign bytes."""
    if len(packet) < _START.size or not packet.startswith(_MAGIC):
        raise Malformed("not a CaBaFL message")
    version = packet[len(_MAGIC)]
    if version != PROTOCOL:
        raise OtherVersion(version)


def message_limit(weights: int) -> int:
    """Bytes of the largest message accepted: twice a model of this many weights, so that a wrong layout is reported
    as such."""
    return 8 * weights + OVERHEAD


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _read_values(text: bytes, lengths: Mapping[str, int]) -> tuple[str, dict[str, Value]]:
    try:
        found = json.loads(text.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Malformed("values that are not JSON") from None
    kind = found.pop("kind", None) if isinstance(found, dict) else None
    if not isinstance(kind, str) or kind not in lengths:
        raise Malformed(f"kind = {str(kind)[:40]!r}; accepted: {', '.join(lengths)}")
    schema = SCHEMAS[kind]
    if found.keys() != schema.keys():
        raise Malformed(f"{kind}: {', '.join(sorted(map(str, found)))[:200] or 'no values'}, not {', '.join(schema)}")
    for name, kind_of_value in schema.items():
        _check(name, found[name], kind_of_value)
    return kind, found


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _check(name: str, value: object, kind: type) -> None:
    if type(value) is not kind:
        raise Malformed(f"{name} is of type {type(value).__name__}, not {kind.__name__}")
    if type(value) is int and not (-1 if name == "epochs" else 0) <= value <= LARGEST_COUNT:
        raise Malformed(f"{name} = {value}"[:80])
    if type(value) is float and (not math.isfinite(value) or (value < 0 and name != "loss")):
        raise Malformed(f"{name} = {value}")
    if type(value) is str and len(value) > LONGEST_TEXT:
        raise Malformed(f"{name} has {len(value)} characters")


def _read_vector(data: memoryview, kind: str, length: int) -> tuple[Weights, str]:
    if kind not in VECTORS and len(data):
        raise Malformed(f"{kind}: {len(data)} bytes after its values")
    if len(data) == 0 and ((kind == "job" and length == 0) or kind not in VECTORS):
        return _EMPTY, ""
    if len(data) != 4 * length:
        return _EMPTY, f"{len(data)} bytes for {length} numbers"
    vector = np.frombuffer(data, dtype="<f4").astype(np.float32)  # a copy, aligned
    if not np.isfinite(vector).all():
        return _EMPTY, "numbers that are not finite"
    return vector, ""
