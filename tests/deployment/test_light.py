"""The device for load tests answers like one that trains."""

import time
from pathlib import Path

import numpy as np
import pytest

from cabafl.assembly import make_server_task
from cabafl.config import load_experiment
from cabafl.deployment.device.light import LightParticipant
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.messages import FeatureQuery, TrainingJob
from cabafl.methods.base import PLAIN, Objective

WEIGHTS = np.linspace(-1, 1, 50, dtype=np.float32)


def test_answers_follow_from_device_and_job() -> None:
    device, job = LightParticipant(3, 2.0, 7), TrainingJob(11, WEIGHTS, PLAIN)
    reply, again = device.reply_for(job), LightParticipant(3, 2.0, 7).reply_for(job)
    assert reply.weights.dtype == np.float32
    assert np.array_equal(reply.weights, again.weights)
    assert 0 < np.abs(reply.weights - WEIGHTS).max() <= 1.1e-3
    assert reply.loss is None
    assert device.reply_for(TrainingJob(11, WEIGHTS, Objective(report_loss=True))).loss == 0.0
    assert not np.array_equal(reply.weights, LightParticipant(4, 2.0, 7).reply_for(job).weights)
    delays = [device.delay(TrainingJob(number, WEIGHTS, PLAIN)) for number in range(2000)]
    assert 1.0 <= min(delays) < 1.1 < 2.9 < max(delays) <= 3.0
    assert sum(delays) / len(delays) == pytest.approx(2.0, rel=0.05)


def test_it_has_the_interface_of_a_participant(tmp_path: Path) -> None:
    experiment = load_experiment(
        None, ["data.train_limit=100", "data.test_limit=20", "data.devices=1", "model.name=mlp"]
    )
    device = LightParticipant(3, 0.05, 7)
    assert device.join(Greeting.of(experiment, make_server_task(experiment), 1)) > 0
    assert device.ready() is None
    assert device.train(TrainingJob(1, WEIGHTS, PLAIN), lambda: False) is not None
    slow, began = LightParticipant(3, 60.0, 7), time.monotonic()
    assert slow.train(TrainingJob(1, WEIGHTS, PLAIN), lambda: True) is None
    assert time.monotonic() - began < 5
    row = device.features(FeatureQuery(1, weights=WEIGHTS, kind="activations")).features
    assert row.dtype == np.float32
    assert row.shape == (7,)
    assert np.linalg.norm(row) == pytest.approx(1.0)
    assert device.features(FeatureQuery(1, weights=WEIGHTS, kind="labels")).features.shape == (10,)
    device.leave()
    assert device.greeting is None
