"""Jobs, queries and replies as Flower messages: the bytes of one flat float32 vector (little-endian) and a few numbers,
nothing else. Flower sends each record of a message, and each of the four parts it makes of an array, in a request of
its own; bytes in a single record are the least it takes.

Both sides read strictly. What comes from a device is checked before anything is allocated for it; there is no pickle
and no format that could hold one. A job says nothing about where its model has been: every field is listed here.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from cabafl.deployment.messages import FeatureQuery, Hello, TrainingJob, TrainingReply
from cabafl.methods.base import FeatureKind, Objective, Weights

TRAIN, FEATURES, HELLO = "train", "query.features", "query.hello"  # message types
LARGEST_COUNT = 1 << 53  # exact as float64 too
LONGEST_TEXT = 20_000  # characters
PIECE = 4 << 20  # bytes; every record of a message is a request of its own
_NUMBERS, _VALUES = "numbers", "values"

Field = Literal["int", "float", "str", "bytes"]
_TYPES: dict[Field, type] = {"int": int, "float": float, "str": str, "bytes": bytes}


class Malformed(ValueError):
    """A message that is not what it should be; the reason in one line."""


def encode_job(job: TrainingJob) -> RecordDict:
    """A job for a device."""
    objective = job.objective
    return _encode(
        job.weights,
        number=job.number,
        epochs=-1 if objective.epochs is None else objective.epochs,
        lr_scale=float(objective.lr_scale),
        prox=float(objective.prox),
        report_loss=int(objective.report_loss),
    )


def decode_job(record: RecordDict, length: int) -> TrainingJob:
    """What `encode_job` was given; ``length`` is the number of weights of the device's own model."""
    fields: dict[str, Field] = {
        "number": "int",
        "epochs": "int",
        "lr_scale": "float",
        "prox": "float",
        "report_loss": "int",
    }
    weights, values = _decode(record, fields, length)
    number, epochs = _count(values, "number"), values["epochs"]
    if not isinstance(epochs, int) or epochs < -1 or epochs > 1_000_000:
        raise Malformed(f"epochs = {epochs}")
    objective = Objective(
        None if epochs == -1 else epochs,
        _amount(values, "lr_scale"),
        _amount(values, "prox"),
        bool(_count(values, "report_loss")),
    )
    return TrainingJob(number, weights, objective)


def encode_reply(reply: TrainingReply) -> RecordDict:
    """A trained model."""
    loss = reply.loss
    known = loss is not None and math.isfinite(loss)
    return _encode(
        reply.weights,
        seconds=float(reply.seconds),
        joules=float(reply.joules),
        loss=float(loss or 0.0) if known else 0.0,
        losses=int(known),
    )


def decode_reply(record: RecordDict, length: int) -> TrainingReply:
    """A reply to a job; ``length`` is the number of weights that were sent out."""
    fields: dict[str, Field] = {"seconds": "float", "joules": "float", "loss": "float", "losses": "int"}
    weights, values = _decode(record, fields, length)
    loss = float(values["loss"]) if _count(values, "losses") else None
    return TrainingReply(weights, _amount(values, "seconds"), _amount(values, "joules"), loss)


def encode_feature_query(query: FeatureQuery) -> RecordDict:
    """Asks a device for its feature vector."""
    return _encode(query.weights, kind=query.kind)


def decode_feature_query(record: RecordDict, length: int) -> FeatureQuery:
    """What `encode_feature_query` was given."""
    weights, values = _decode(record, {"kind": "str"}, length)
    kind = values["kind"]
    for known in get_args(FeatureKind):
        if kind == known:
            return FeatureQuery(weights, known)
    raise Malformed(f"kind = {str(kind)[:40]!r}; accepted: {', '.join(get_args(FeatureKind))}")


def encode_features(features: Weights) -> RecordDict:
    """A device's feature vector."""
    return _encode(features)


def decode_features(record: RecordDict, length: int) -> Weights:
    """A feature vector of ``length`` numbers."""
    return _decode(record, {}, length)[0]


def encode_greeting(text: str) -> RecordDict:
    """Tells a device what the experiment is (`greeting.Greeting` as JSON)."""
    return RecordDict({_VALUES: ConfigRecord({"greeting": text})})


def decode_greeting(record: RecordDict) -> str:
    """What `encode_greeting` was given."""
    return str(_only_values(record, {"greeting": "str"})["greeting"])


def encode_hello(samples: int, fresh: bool) -> RecordDict:
    """A device's answer to the greeting: how many samples it trains with, and whether its process is new to it."""
    return RecordDict({_VALUES: ConfigRecord({"samples": int(samples), "fresh": int(fresh)})})


def decode_hello(record: RecordDict) -> Hello:
    """What `encode_hello` was given."""
    values = _only_values(record, {"samples": "int", "fresh": "int"})
    return Hello(_count(values, "samples"), bool(_count(values, "fresh")))


def _only_values(record: RecordDict, fields: Mapping[str, Field]) -> dict[str, int | float | str]:
    if set(record) != {_VALUES}:
        raise Malformed(f"records {_names(record)}, not {_VALUES}")
    return _values(record, fields)


def _encode(numbers: Weights, **values: int | float | str) -> RecordDict:
    """The first piece of the numbers travels with the values, each further one in a record of its own."""
    if numbers.dtype != np.float32 or numbers.ndim != 1:
        raise TypeError(f"one flat float32 vector is sent, not {numbers.dtype} of shape {numbers.shape}")
    data = np.ascontiguousarray(numbers, dtype="<f4").tobytes()
    pieces = [data[start : start + PIECE] for start in range(0, len(data), PIECE)] or [b""]
    record = RecordDict({_VALUES: ConfigRecord({**values, _NUMBERS: pieces[0]})})
    for number, piece in enumerate(pieces[1:], start=1):
        record[str(number)] = ConfigRecord({_NUMBERS: piece})
    return record


def _decode(
    record: RecordDict, fields: Mapping[str, Field], length: int
) -> tuple[Weights, dict[str, int | float | str]]:
    names = [_VALUES, *map(str, range(1, -(-4 * length // PIECE)))]
    if set(record) != set(names):
        raise Malformed(f"records {_names(record)}, not {', '.join(names[:5])}")
    values = _values(record, {**fields, _NUMBERS: "bytes"})
    pieces = [values.pop(_NUMBERS), *(_values(record, {_NUMBERS: "bytes"}, name)[_NUMBERS] for name in names[1:])]
    return _numbers(pieces, length), values


def _numbers(pieces: Sequence[object], length: int) -> Weights:
    """The vector, in memory of its own."""
    found = sum(len(piece) for piece in pieces if isinstance(piece, bytes))
    if found != 4 * length:
        raise Malformed(f"{found} bytes for {length} numbers")
    data = b"".join(piece for piece in pieces if isinstance(piece, bytes))
    numbers = np.frombuffer(data, dtype="<f4").astype(np.float32)
    if not np.isfinite(numbers).all():
        raise Malformed("numbers that are not finite")
    return numbers


def _values(record: RecordDict, fields: Mapping[str, Field], where: str = _VALUES) -> dict[str, Any]:
    values = record[where]
    if not isinstance(values, ConfigRecord) or set(values) != set(fields):
        raise Malformed(f"{where} {_names(values)}, not {', '.join(fields)}")
    for name, kind in fields.items():
        value = values[name]
        if type(value) is not _TYPES[kind]:
            raise Malformed(f"{name} is of type {type(value).__name__}, not {kind}")
        if isinstance(value, float) and not math.isfinite(value):
            raise Malformed(f"{name} = {value}")
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise Malformed(f"{name} has {len(value)} characters")
    return {name: values[name] for name in fields}


def _count(values: Mapping[str, int | float | str], name: str) -> int:
    value = values[name]
    if not isinstance(value, int) or not 0 <= value <= LARGEST_COUNT:
        raise Malformed(f"{name} = {value}")
    return value


def _amount(values: Mapping[str, int | float | str], name: str) -> float:
    value = values[name]
    if not isinstance(value, float) or value < 0:
        raise Malformed(f"{name} = {value}")
    return value


def _names(record: Mapping[str, object]) -> str:
    return ", ".join(sorted(name[:20] for name in list(record)[:5])) or "none"
