"""Messages are decoded as they were encoded, and nothing else is accepted."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

pytest.importorskip("flwr", reason="flwr is not installed (extra `deploy`)")

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from cabafl.deployment import wire
from cabafl.deployment.messages import FeatureQuery, TrainingJob, TrainingReply
from cabafl.deployment.wire import Malformed
from cabafl.methods.base import PLAIN, Objective, Weights

vectors = hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32))
amounts = st.floats(0, 1e300, allow_nan=False)


@given(vectors, st.integers(0, 2**53), st.none() | st.integers(0, 1000), amounts, amounts, st.booleans())
def test_job_arrives_as_it_was_sent(
    weights: Weights, number: int, epochs: int | None, lr_scale: float, prox: float, report_loss: bool
) -> None:
    objective = Objective(epochs, lr_scale, prox, report_loss)
    job = wire.decode_job(wire.encode_job(TrainingJob(number, weights, objective)), len(weights))
    assert (job.number, job.objective) == (number, objective)
    np.testing.assert_array_equal(job.weights, weights)


@given(vectors, amounts, amounts, st.none() | st.floats(allow_nan=False, allow_infinity=False))
def test_reply_arrives_as_it_was_sent(weights: Weights, seconds: float, joules: float, loss: float | None) -> None:
    reply = wire.decode_reply(wire.encode_reply(TrainingReply(weights, seconds, joules, loss)), len(weights))
    assert (reply.seconds, reply.joules, reply.loss) == (seconds, joules, loss)
    np.testing.assert_array_equal(reply.weights, weights)


@given(vectors, st.sampled_from(["activations", "activation_counts", "labels"]))
def test_feature_query_and_answer(weights: Weights, kind: Any) -> None:
    query = wire.decode_feature_query(wire.encode_feature_query(FeatureQuery(weights, kind)), len(weights))
    assert query.kind == kind
    np.testing.assert_array_equal(query.weights, weights)
    np.testing.assert_array_equal(wire.decode_features(wire.encode_features(weights), len(weights)), weights)


@given(st.integers(0, 2**53), st.booleans())
def test_hello(samples: int, fresh: bool) -> None:
    assert wire.decode_hello(wire.encode_hello(samples, fresh)) == (samples, fresh)


@given(st.text(max_size=wire.LONGEST_TEXT))
def test_greeting(text: str) -> None:
    assert wire.decode_greeting(wire.encode_greeting(text)) == text


def test_a_greeting_that_is_too_long_is_refused() -> None:
    with pytest.raises(Malformed, match="20001 characters"):
        wire.decode_greeting(wire.encode_greeting("x" * 20_001))


def test_a_job_message_does_not_depend_on_earlier_devices() -> None:
    """A job message depends only on number, weights and objective, so it reveals nothing else."""
    weights = np.arange(3, dtype=np.float32)
    record = wire.encode_job(TrainingJob(7, weights, PLAIN))
    assert set(record) == {"values"}
    fields = {"number": 7, "epochs": -1, "lr_scale": 1.0, "prox": 0.0, "report_loss": 0}
    assert record["values"] == {**fields, "numbers": weights.tobytes()}
    assert record.object_id == wire.encode_job(TrainingJob(7, weights.copy(), PLAIN)).object_id


def good() -> RecordDict:
    return wire.encode_reply(TrainingReply(np.arange(4, dtype=np.float32), 1.5, 2.5, 0.5))


def of(*numbers: float) -> bytes:
    return np.array(numbers, dtype="<f4").tobytes()


def with_values(**changes: Any) -> RecordDict:
    values = {**dict(good()["values"]), **changes}
    return RecordDict({"values": ConfigRecord({k: v for k, v in values.items() if v != ""})})


MALFORMED: dict[str, Callable[[], RecordDict]] = {
    "empty": RecordDict,
    "more records": lambda: RecordDict({**dict(good()), "more": ConfigRecord({"a": 1})}),
    "a piece too many": lambda: RecordDict({**dict(good()), "1": ConfigRecord({"numbers": b""})}),
    "metrics": lambda: RecordDict({"values": MetricRecord({"numbers": [1.0, 2.0]})}),
    "an array": lambda: RecordDict({"values": ArrayRecord([np.zeros(4, np.float32)])}),
    "an array beside it": lambda: RecordDict({**dict(good()), "a": ArrayRecord([np.zeros(4, np.float32)])}),
    "no numbers": lambda: with_values(numbers=""),
    "pickled": lambda: with_values(numbers=b"\x80\x04K\x01."),
    "float64": lambda: with_values(numbers=bytes(32)),
    "a list": lambda: with_values(numbers=[1.0, 2.0, 3.0, 4.0]),
    "text": lambda: with_values(numbers="sixteen letters!"),
    "too short": lambda: with_values(numbers=of(1, 2, 3)),
    "too long": lambda: with_values(numbers=of(1, 2, 3, 4, 5)),
    "none at all": lambda: with_values(numbers=b""),
    "half a number": lambda: with_values(numbers=bytes(15)),
    "NaN": lambda: with_values(numbers=of(1, float("nan"), 2, 3)),
    "infinite": lambda: with_values(numbers=of(1, float("-inf"), 2, 3)),
    "value missing": lambda: with_values(losses=""),
    "value too many": lambda: with_values(path="/etc"),
    "text for a number": lambda: with_values(losses="ten"),
    "list for a number": lambda: with_values(seconds=[1.0, 2.0]),
    "float for a count": lambda: with_values(losses=10.0),
    "truth for a count": lambda: with_values(losses=True),
    "negative count": lambda: with_values(losses=-1),
    "huge count": lambda: with_values(losses=1 << 60),
    "negative time": lambda: with_values(seconds=-0.5),
    "NaN time": lambda: with_values(seconds=float("nan")),
    "infinite energy": lambda: with_values(joules=float("inf")),
    "negative energy": lambda: with_values(joules=-2.0),
    "bytes": lambda: with_values(joules=b"\x80"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_reply_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(Malformed) as caught:
        wire.decode_reply(MALFORMED[name](), 4)
    assert 0 < len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_record_is_refused_by_all_decoders(name: str) -> None:
    record = MALFORMED[name]()
    for decode in (wire.decode_job, wire.decode_feature_query, wire.decode_features):
        with pytest.raises(Malformed):
            decode(record, 4)
    with pytest.raises(Malformed):
        wire.decode_hello(record)


scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=9) | st.binary(max_size=9)
names = st.sampled_from(["losses", "seconds", "joules", "number", "numbers", "kind", "x"])
arrays = st.binary(max_size=20).map(lambda data: ArrayRecord([np.frombuffer(data, np.uint8)]))
records = st.dictionaries(
    st.sampled_from(["values", "1", "x"]),
    st.dictionaries(names, scalars, max_size=4).map(lambda values: ConfigRecord(dict(values))) | arrays,
    max_size=3,
)


@given(records)
def test_random_records_are_decoded_or_refused(content: dict[str, Any]) -> None:
    for decode in (wire.decode_reply, wire.decode_features, wire.decode_feature_query, wire.decode_job):
        with suppress(Malformed):
            decode(RecordDict(content), 2)


@pytest.mark.parametrize("numbers", [np.zeros(3), np.zeros((2, 2), np.float32)])
def test_only_flat_float32_is_sent(numbers: Any) -> None:
    with pytest.raises(TypeError):
        wire.encode_features(numbers)


def test_a_large_model_travels_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PIECE", 8)
    weights = np.arange(5, dtype=np.float32)
    record = wire.encode_features(weights)
    assert {name: dict(record[name]) for name in record} == {
        "values": {"numbers": weights[:2].tobytes()},
        "1": {"numbers": weights[2:4].tobytes()},
        "2": {"numbers": weights[4:].tobytes()},
    }
    np.testing.assert_array_equal(wire.decode_features(record, 5), weights)
    for length in (3, 4, 6, 7):
        with pytest.raises(Malformed):
            wire.decode_features(record, length)
    del record["1"]
    with pytest.raises(Malformed, match="records 2, values, not values, 1, 2"):
        wire.decode_features(record, 5)
