"""Jobs, queries and replies as Flower messages: the bytes of one flat float32 vector (little-endian) and a few numbers,
nothing else. Flower sends every record of a message, and each of the four parts of an array, as a separate request;
bytes in a single record need the fewest requests.

Both sides read strictly: a message is checked before memory is allocated for it, and no format that could contain a
pickle is accepted. A job does not reveal where its model has been: all its fields are listed here.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from cabafl.deployment.messages import FeatureQuery, Hello, TrainingJob, TrainingReply
from cabafl.methods.base import FeatureKind, Objective, Weights

TRAIN, FEATURES, HELLO = "train", "query.features", "query.hello"  # message types
LARGEST_COUNT = 1 << 53  # exact as float64
LONGEST_TEXT = 20_000  # characters
PIECE = 4 << 20  # bytes of the vector per record, that is per request
_NUMBERS, _VALUES = "numbers", "values"

Field = Literal["int", "float", "str", "bytes"]
_TYPES: dict[Field, type] = {"int": int, "float": float, "str": str, "bytes": bytes}


class Malformed(ValueError):
    """A message with wrong fields, types or values; the text is one line."""


def encode_job(job: TrainingJob) -> RecordDict:
    """The reverse of `decode_job`; ``epochs`` None becomes -1."""
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
    """Reads a job; ``length`` is the number of weights of the device's model. All decoders raise `Malformed`."""
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
    """The reverse of `decode_reply`; a loss that is not finite is left out."""
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
    """Reads a reply to a job; ``length`` is the number of weights that were sent."""
    fields: dict[str, Field] = {"seconds": "float", "joules": "float", "loss": "float", "losses": "int"}
    weights, values = _decode(record, fields, length)
    loss = float(values["loss"]) if _count(values, "losses") else None
    return TrainingReply(weights, _amount(values, "seconds"), _amount(values, "joules"), loss)


def encode_feature_query(query: FeatureQuery) -> RecordDict:
    """The reverse of `decode_feature_query`."""
    return _encode(query.weights, kind=query.kind)


def decode_feature_query(record: RecordDict, length: int) -> FeatureQuery:
    """Reads a query; ``length`` is the number of weights of the device's model."""
    weights, values = _decode(record, {"kind": "str"}, length)
    kind = values["kind"]
    for known in get_args(FeatureKind):
        if kind == known:
            return FeatureQuery(weights, known)
    raise Malformed(f"kind = {str(kind)[:40]!r}; accepted: {', '.join(get_args(FeatureKind))}")


def encode_features(features: Weights) -> RecordDict:
    """The reverse of `decode_features`."""
    return _encode(features)


def decode_features(record: RecordDict, length: int) -> Weights:
    """Reads a feature vector of ``length`` numbers."""
    return _decode(record, {}, length)[0]


def encode_greeting(text: str) -> RecordDict:
    """Takes a `greeting.Greeting` as JSON."""
    return RecordDict({_VALUES: ConfigRecord({"greeting": text})})


def decode_greeting(record: RecordDict) -> str:
    """Returns the JSON text, at most `LONGEST_TEXT` characters."""
    return str(_only_values(record, {"greeting": "str"})["greeting"])


def encode_hello(samples: int, fresh: bool) -> RecordDict:
    """The reverse of `decode_hello`."""
    return RecordDict({_VALUES: ConfigRecord({"samples": int(samples), "fresh": int(fresh)})})


def decode_hello(record: RecordDict) -> Hello:
    """Reads a device's answer to the greeting."""
    values = _only_values(record, {"samples": "int", "fresh": "int"})
    return Hello(_count(values, "samples"), bool(_count(values, "fresh")))


def _only_values(record: RecordDict, fields: Mapping[str, Field]) -> dict[str, int | float | str]:
    if set(record) != {_VALUES}:
        raise Malformed(f"records {_names(record)}, not {_VALUES}")
    return _values(record, fields)


def _encode(numbers: Weights, **values: int | float | str) -> RecordDict:
    """The first piece of the numbers shares a record with the values; each further piece has its own record."""
    if numbers.dtype != np.float32 or numbers.ndim != 1:
        raise TypeError(f"{numbers.dtype} of shape {numbers.shape}; accepted: a flat float32 vector")
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
    """Joins the pieces; the result is a copy."""
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
