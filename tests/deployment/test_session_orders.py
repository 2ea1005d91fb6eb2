"""What a device does with results that are held, jobs that finish early and jobs with a correction."""

from typing import Any

import numpy as np
import pytest

from cabafl.deployment import wire
from cabafl.deployment.device.session import Action, Finish, Session, Stop, Train
from cabafl.methods.base import PLAIN, Objective
from tests.deployment.test_session import DOWN, MODEL, REPLY, WEIGHTS, failure, job, model, said, send, session


def held_job(device: Session, number: int) -> list[Action]:
    values = wire.job_values("one", number, Objective(hold=True))
    return [action for packet in wire.encode("job", values, WEIGHTS) for action in device.take(DOWN, packet)]


def ready(number: int) -> list[tuple[str, dict[str, Any]]]:
    return [("ready", {"run": "one", "job": number, "seconds": 2.0, "joules": 3.0})]


def test_a_held_result_is_uploaded_when_it_is_fetched() -> None:
    device = session()
    [train] = held_job(device, 4)
    assert isinstance(train, Train)
    assert train.job.objective.hold
    assert send(device, "fetch", 4) == [], "it is not ready yet"
    assert said(device.answer(4, REPLY, hold=True)) == ready(4)
    assert said(send(device, "recall", 4)) == ready(4)
    assert said(held_job(device, 4)) == ready(4), "a duplicate"
    answer = send(device, "fetch", 4)
    assert [kind for kind, _ in said(answer)] == ["trained"]
    assert send(device, "fetch", 4) == answer, "the order came twice, or the upload was lost"
    assert send(device, "recall", 4) == answer
    assert said(send(device, "fetch", 3)) == failure(3, "unknown")


def test_a_held_result_is_dropped_when_it_is_cancelled_or_another_job_comes() -> None:
    device = session()
    held_job(device, 4)
    device.answer(4, REPLY, hold=True)
    assert send(device, "cancel", 3) == [Stop(3)], "of an earlier job"
    assert said(send(device, "cancel", 4)) == failure(4, "cancelled", "cancelled")
    assert said(send(device, "fetch", 4)) == failure(4, "cancelled", "cancelled")
    held_job(device, 5)
    device.answer(5, REPLY, hold=True)
    job(device, 6)
    assert said(send(device, "fetch", 5)) == failure(5, "unknown")
    assert send(device, "fetch", 6) == []


def test_a_late_held_result_of_an_older_job_is_only_told() -> None:
    device = session()
    held_job(device, 4)
    job(device, 5)
    assert said(device.answer(4, REPLY, hold=True)) == ready(4)
    assert said(send(device, "fetch", 4)) == failure(4, "unknown")
    assert send(device, "recall", 5) == []


def test_an_order_to_finish_is_passed_on() -> None:
    device = session()
    job(device, 4)
    assert send(device, "finish", 4) == [Finish(4)]
    assert send(device, "finish", 4, run="two") == []


@pytest.mark.parametrize("topic", ["", MODEL])
def test_a_job_with_a_correction(topic: str) -> None:
    device = session()
    correction = np.full(6, 7, np.float32)
    values = wire.job_values("one", 4, PLAIN, topic, correction=True)
    vector = wire.job_vector(WEIGHTS[:0] if topic else WEIGHTS, correction)
    actions = [action for packet in wire.encode("job", values, vector) for action in device.take(DOWN, packet)]
    if topic:
        actions = model(device)
    train = actions[-1]
    assert isinstance(train, Train)
    np.testing.assert_array_equal(train.job.weights, WEIGHTS)
    assert train.job.correction is not None
    np.testing.assert_array_equal(train.job.correction, correction)


def test_a_job_without_the_correction_that_it_names_is_rejected() -> None:
    for topic, vector, text in (
        ("", WEIGHTS, "24 bytes for 12 numbers"),
        (MODEL, WEIGHTS[:0], "0 bytes for 6 numbers"),
    ):
        device = session()
        values = wire.job_values("one", 4, PLAIN, topic, correction=True)
        actions = [action for packet in wire.encode("job", values, vector) for action in device.take(DOWN, packet)]
        assert said(actions) == failure(4, "rejected", text)
