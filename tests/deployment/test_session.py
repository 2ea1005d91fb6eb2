"""What a device answers to the server's messages, and when it says nothing."""

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.deployment import wire
from cabafl.deployment.device.session import (
    Action,
    Complain,
    Describe,
    Fetch,
    Join,
    Leave,
    Publish,
    Session,
    Stop,
    Train,
)
from cabafl.deployment.messages import FeatureReply, TrainingReply
from cabafl.deployment.mqtt.link import MODEL_TOPICS, QUERY_TOPIC, RUN_TOPIC, down_topic, here_topic, up_topic
from cabafl.methods.base import PLAIN, FeatureKind, Objective, Weights

WEIGHTS: Weights = np.arange(6, dtype=np.float32)
DOWN, UP, HERE = down_topic(3), up_topic(3), here_topic(3)
MODEL = f"{MODEL_TOPICS}/abcd"
UP_KINDS = {"trained": 6, "ready": 0, "failed": 0, "features": 2, "refused": 0, "here": 0, "gone": 0}


def session(run: str = "one") -> Session:
    """A device that has joined a run."""
    made = Session(3, "process")
    greet(made, run)
    made.joined(run, len(WEIGHTS), 100)
    return made


def greet(device: Session, run: str) -> list[Action]:
    [packet] = wire.encode("greeting", {"run": run, "greeting": f"greeting of {run}"})
    return device.take(RUN_TOPIC, packet)


def send(device: Session, kind: str, number: int, run: str = "one") -> list[Action]:
    [packet] = wire.encode(kind, {"run": run, "job": number})
    return device.take(DOWN, packet)


def job(
    device: Session, number: int, topic: str = "", weights: Weights | None = None, run: str = "one"
) -> list[Action]:
    vector = WEIGHTS if weights is None else weights
    [packet] = wire.encode("job", wire.job_values(run, number, PLAIN, topic), vector[:0] if topic else vector)
    return device.take(DOWN, packet)


def model(device: Session, topic: str = MODEL, weights: Weights = WEIGHTS, piece: int = 1 << 20) -> list[Action]:
    actions = []
    for number, packet in enumerate(wire.encode("model", {}, weights, piece)):
        actions += device.take(f"{topic}/{number}", packet)
    return actions


def query(device: Session, number: int, kind: str = "labels", weights: Weights = WEIGHTS) -> list[Action]:
    [packet] = wire.encode("query", {"run": "one", "query": number, "features": kind}, weights)
    return device.take(QUERY_TOPIC, packet)


def said(actions: list[Action]) -> list[tuple[str, dict[str, Any]]]:
    """What is published, read as the server reads it; nothing else may be among the actions."""
    records = []
    for action in actions:
        assert isinstance(action, Publish)
        assert (action.topic, action.retain) in ((UP, False), (HERE, True))
        content = wire.Assembler(1 << 20).add(action.payload)
        assert content is not None
        record = wire.decode(content, UP_KINDS)
        assert not record.problem
        records.append((record.kind, dict(record.values)))
    return records


def presence(run: str, samples: int = 0, declined: str = "") -> list[tuple[str, dict[str, Any]]]:
    return [("here", {"run": run, "process": "process", "samples": samples, "declined": declined})]


def failure(number: int, reason: str, text: str = "", run: str = "one") -> list[tuple[str, dict[str, Any]]]:
    return [("failed", {"run": run, "job": number, "reason": reason, "text": text})]


REPLY = TrainingReply(WEIGHTS + 1, 2.0, 3.0, None)

# Runs


def test_a_greeting_leads_into_a_run_and_out_of_it() -> None:
    device = Session(3, "process")
    assert device.subscriptions == (RUN_TOPIC, QUERY_TOPIC, DOWN)
    assert said(device.connected()) == presence("")
    assert greet(device, "one") == [Join("one", "greeting of one")]
    assert said(device.connected()) == presence(""), "it has not joined yet"
    assert said(device.joined("one", 6, 100)) == presence("one", 100)
    assert said(greet(device, "one")) == presence("one", 100), "the same run again: the server has come back"
    leave, *rest = device.take(RUN_TOPIC, b"")
    assert leave == Leave()
    assert said(rest) == presence("", 100)
    assert device.take(RUN_TOPIC, b"") == []
    assert said([device.absence()]) == [("gone", {"process": "process"})]


def test_a_new_run_replaces_the_one_before() -> None:
    device = session()
    job(device, 5)
    assert greet(device, "two") == [Join("two", "greeting of two")]
    assert device.answer(5, REPLY) == [], "an answer of the earlier run must not count in the new one"
    assert device.fail(5, "crash", "") == []
    assert device.joined("one", 6, 100) == [], "too late"
    device.joined("two", 6, 100)
    assert job(device, 9) == [], "a job of the earlier run"
    [train] = job(device, 0, run="two")
    assert isinstance(train, Train)


def test_a_device_that_declines_says_why_until_the_next_run() -> None:
    device = Session(3, "process")
    greet(device, "one")
    assert said(device.decline("no such model")) == presence("one", declined="no such model")
    assert job(device, 1) == []
    assert said(greet(device, "one")) == presence("one", declined="no such model")
    assert greet(device, "two") == [Join("two", "greeting of two")]
    assert said(device.joined("two", 6, 100)) == presence("two", 100)


def test_not_now() -> None:
    device = session()
    assert device.set_ready(True) == []
    assert said(device.set_ready(False)) == presence("one", 100, "not now")
    assert device.set_ready(False) == []
    assert said(device.set_ready(True)) == presence("one", 100)
    device.set_ready(False)
    assert said(device.decline("other reason")) == presence("one", 100, "other reason")


def test_a_server_of_another_version_is_declined_and_one_of_this_version_joined_later() -> None:
    device = session()
    [packet] = wire.encode("greeting", {"run": "one", "greeting": ""})
    complaint, leave, *rest = device.take(RUN_TOPIC, packet[:4] + b"\x09" + packet[5:])
    assert complaint == Complain("the server speaks protocol version 9; accepted: 2 (upgrade the older side)")
    assert leave == Leave()
    assert said(rest) == presence("", 100, "speaks another version of the protocol")
    assert job(device, 1) == []
    assert greet(device, "one") == [Join("one", "greeting of one")]


# Jobs


def test_a_job_is_trained_and_its_answer_kept_until_the_next() -> None:
    device = session()
    [train] = job(device, 4)
    assert isinstance(train, Train)
    assert (train.job.number, train.job.objective) == (4, PLAIN)
    np.testing.assert_array_equal(train.job.weights, WEIGHTS)
    assert job(device, 4) == [], "the same packet again, while it trains"
    assert send(device, "recall", 4) == []
    answer = device.answer(4, REPLY)
    assert [kind for kind, _ in said(answer)] == ["trained"]
    assert send(device, "recall", 4) == answer
    assert job(device, 4) == answer, "a duplicate is answered, not trained again"
    assert job(device, 3) == [], "older than the last one"
    assert said(send(device, "recall", 3)) == failure(3, "unknown")
    assert said(send(device, "recall", 5)) == failure(5, "unknown")
    assert isinstance(job(device, 5)[0], Train)
    assert send(device, "recall", 5) == []


def test_a_failure_is_kept_like_an_answer() -> None:
    device = session()
    job(device, 4)
    failed = device.fail(4, "crash", "ValueError")
    assert said(failed) == failure(4, "crash", "ValueError")
    assert send(device, "recall", 4) == failed
    job(device, 6)
    assert said(device.fail(4, "cancelled", "")) == failure(4, "cancelled")
    assert send(device, "recall", 6) == [], "the failure of an older job is not the answer to this one"


def test_a_cancelled_job_stops() -> None:
    device = session()
    job(device, 4)
    assert send(device, "cancel", 4) == [Stop(4)]
    assert send(device, "cancel", 4, run="two") == []


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (WEIGHTS[:5], "20 bytes for 6 numbers"),
        (np.array([1, 2, np.nan, 3, 4, 5], np.float32), "numbers that are not finite"),
        (WEIGHTS[:0], "0 bytes for 6 numbers"),
    ],
)
def test_a_job_with_an_unusable_model_is_answered(weights: Weights, text: str) -> None:
    device = session()
    assert said(job(device, 4, weights=weights)) == failure(4, "rejected", text)
    assert said(send(device, "recall", 4)) == failure(4, "rejected", text)


def test_large_answers_are_cut_to_what_the_broker_accepts() -> None:
    device = session()
    device.connected(limit=4096)
    assert device.piece == 2048
    job(device, 1)
    packets = device.answer(1, TrainingReply(np.zeros(2000, np.float32), 1.0, 1.0, None))
    assert len(packets) == 4
    assert all(isinstance(packet, Publish) and len(packet.payload) < 4096 for packet in packets)
    device.connected(limit=1 << 30)
    assert len(device.answer(1, TrainingReply(np.zeros(2000, np.float32), 1.0, 1.0, None))) == 1


# A model that several jobs share


def test_a_shared_model_is_fetched() -> None:
    device = session()
    assert job(device, 4, MODEL) == [Stop(3), Fetch(MODEL, on=True)]
    assert model(device, f"{MODEL_TOPICS}/other") == []
    assert device.take(f"{MODEL}/0", b"") == [], "the model is being removed"
    done, train = model(device, piece=20)
    assert done == Fetch(MODEL, on=False)
    assert isinstance(train, Train)
    assert train.job.number == 4
    np.testing.assert_array_equal(train.job.weights, WEIGHTS)
    assert model(device) == [], "nobody waits for it"


def test_a_shared_model_that_cannot_be_used_fails_its_job() -> None:
    device = session()
    job(device, 4, MODEL)
    done, *rest = model(device, weights=WEIGHTS[:3])
    assert done == Fetch(MODEL, on=False)
    assert said(rest) == failure(4, "rejected", "12 bytes for 6 numbers")


@pytest.mark.parametrize("topic", ["fleet/device-004/down", f"{MODEL_TOPICS}/+", f"{MODEL_TOPICS}/#", "$SYS/#", "#"])
def test_a_model_is_fetched_from_the_topics_of_models_only(topic: str) -> None:
    assert said(job(session(), 4, topic)) == failure(4, "rejected", "a model outside of its topics")


def test_a_model_that_never_comes() -> None:
    """A recall frees the device: the job is unknown, and taken when it comes again."""
    device = session()
    job(device, 4, MODEL)
    assert job(device, 4, MODEL) == [], "the same packet again"
    done, *rest = send(device, "recall", 4)
    assert done == Fetch(MODEL, on=False)
    assert said(rest) == failure(4, "unknown")
    assert model(device) == []
    [train] = job(device, 4)
    assert isinstance(train, Train)


def test_a_newer_job_does_not_wait_for_the_model_of_an_older_one() -> None:
    device = session()
    job(device, 4, MODEL)
    done, train = job(device, 5)
    assert done == Fetch(MODEL, on=False)
    assert isinstance(train, Train)
    assert model(device) == [], "job 4 would replace job 5"
    job(device, 6, MODEL)
    other = f"{MODEL_TOPICS}/efgh"
    assert job(device, 7, other) == [Fetch(MODEL, on=False), Stop(6), Fetch(other, on=True)]


def test_a_cancelled_job_without_model_is_answered() -> None:
    device = session()
    job(device, 4, MODEL)
    assert send(device, "cancel", 3) == [Stop(3)]
    done, *rest = send(device, "cancel", 4)
    assert done == Fetch(MODEL, on=False)
    assert said(rest) == failure(4, "cancelled", "cancelled")


def test_a_new_connection_fetches_the_model_again_and_a_new_run_does_not() -> None:
    device = session()
    job(device, 4, MODEL)
    device.take(f"{MODEL}/0", wire.encode("model", {}, WEIGHTS, 20)[0])
    here, fetch = device.connected()
    assert said([here]) == presence("one", 100)
    assert fetch == Fetch(MODEL, on=True)
    assert isinstance(model(device, piece=20)[-1], Train), "all pieces come again"
    job(device, 5, MODEL)
    assert greet(device, "two") == [Fetch(MODEL, on=False), Join("two", "greeting of two")]


def test_the_next_run_may_have_a_larger_model() -> None:
    device = session()
    job(device, 1, MODEL)
    model(device)
    greet(device, "two")
    large = np.zeros(50_000, np.float32)
    device.joined("two", len(large), 100)
    job(device, 1, MODEL, run="two")
    assert isinstance(model(device, weights=large)[-1], Train)


# Features


def test_a_feature_query_is_answered_or_refused() -> None:
    device = session()
    for kind in get_args(FeatureKind):
        [describe] = query(device, 7, kind)
        assert isinstance(describe, Describe)
        assert (describe.query.number, describe.query.kind) == (7, kind)
    reply = device.describe(7, FeatureReply(np.ones(2, np.float32)))
    assert said(reply) == [("features", {"run": "one", "query": 7})]
    assert said(device.refuse(7, "not today")) == [("refused", {"run": "one", "query": 7, "text": "not today"})]
    [(_, values)] = said(query(device, 8, "gradients"))
    assert values["text"] == "an unknown kind of features"
    [(_, values)] = said(query(device, 9, weights=WEIGHTS[:2]))
    assert values["text"] == "8 bytes for 6 numbers"


# Nonsense


@pytest.mark.parametrize("payload", [b"", b"nonsense", wire.encode("gone", {"process": "x"})[0]])
def test_a_message_that_cannot_be_read_is_logged(payload: bytes) -> None:
    for topic in (DOWN, QUERY_TOPIC):
        [complaint] = session().take(topic, payload)
        assert isinstance(complaint, Complain)
        assert complaint.text.startswith("a message of the server is refused: ")


def test_too_many_epochs_and_a_greeting_in_pieces_are_refused() -> None:
    device = session()
    [packet] = wire.encode("job", wire.job_values("one", 4, Objective(2_000_000)), WEIGHTS)
    assert device.take(DOWN, packet) == [Complain("a message of the server is refused: epochs = 2000000")]
    pieces = wire.encode("greeting", {"run": "two", "greeting": "x" * 50}, piece=30)
    assert device.take(RUN_TOPIC, pieces[0]) == [Complain("a message of the server is refused: a greeting in pieces")]


def test_what_was_sent_to_an_earlier_process_is_ignored() -> None:
    device = Session(3, "process")
    assert job(device, 4, weights=np.zeros(100_000, np.float32)) == []
    assert device.take(DOWN, b"nonsense") == []


def happens(device: Session, step: int, number: int) -> list[Action]:
    """One of the things that can happen to a device."""
    topic = f"{MODEL_TOPICS}/{number}"
    if step == 0:
        return job(device, number, run=device.run)
    if step == 1:
        return job(device, number, topic, run=device.run)
    if step in (2, 3):
        return send(device, "recall" if step == 2 else "cancel", number, device.run)
    if step == 4:
        return model(device, topic)
    if step == 5:
        return greet(device, f"run {number}")
    return device.joined(device.run, 6, 1) if step == 6 else device.take(RUN_TOPIC, b"")


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 4)), max_size=30))
def test_in_any_order_a_device_waits_for_one_model_at_most(steps: list[tuple[int, int]]) -> None:
    """No order of messages raises, and every subscription to a model is ended."""
    device = session()
    fetching: set[str] = set()
    for step, number in steps:
        for action in happens(device, step, number):
            if isinstance(action, Fetch):
                (fetching.add if action.on else fetching.remove)(action.topic)
        assert len(fetching) <= 1
