"""A device without a network: what it answers, what it refuses, and that nothing else leaves it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed (extra `deploy`)")

from flwr.app import Context, Message, Metadata, RecordDict
from flwr.app.message import make_message

from cabafl.assembly import assemble, make_server_task
from cabafl.config import load_experiment
from cabafl.deployment import wire
from cabafl.deployment.device.participant import Participant
from cabafl.deployment.folder.layout import Device
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.messages import FeatureQuery, TrainingJob
from cabafl.deployment.server.serve import for_devices
from cabafl.errors import UserError
from cabafl.methods.base import FeatureKind, Objective

SETTINGS = ["data.train_limit=300", "data.test_limit=20", "model.name=mlp", "training.epochs=2"]
DEVICES, WHO = 5, 3
CONTEXT = Context(1, 2, {}, RecordDict(), {})


def message(kind: str, content: RecordDict) -> Message:
    return make_message(Metadata(1, "m", 1, 2, "", "", 1.8e9, 1e9, kind), content=content)


def joined(tmp_path: Path, *settings: str, **more: Any) -> tuple[Participant, Greeting]:
    experiment = for_devices(load_experiment(None, [*SETTINGS, *settings]), DEVICES)
    greeting = Greeting.of(experiment, make_server_task(experiment), DEVICES)
    device = Participant(Device(tmp_path, "server:1", WHO, WHO, **more))
    hello = device(message(wire.HELLO, wire.encode_greeting(greeting.text())), CONTEXT)
    device.samples, fresh = wire.decode_hello(hello.content)  # type: ignore[attr-defined]
    assert fresh
    return device, greeting


def test_a_job_gives_the_bits_of_the_simulator(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path)
    parts = assemble(load_experiment(None, [*SETTINGS, f"data.devices={DEVICES}", "fleet.slots=1"]))
    weights = parts.task.model.save()
    how = Objective(epochs=1, lr_scale=0.5, prox=0.1, report_loss=True)
    reply = device(message(wire.TRAIN, wire.encode_job(TrainingJob(17, weights, how))), CONTEXT)
    found = wire.decode_reply(reply.content, greeting.weights)
    expected = parts.task.train(17, WHO, weights, how)
    assert np.array_equal(found.weights, expected.weights)
    assert found.loss == expected.loss
    assert found.seconds > 0
    assert found.joules == pytest.approx(10.0 * found.seconds, rel=0.2)


@pytest.mark.parametrize("kind", ["activations", "activation_counts", "labels"])
def test_features_are_those_of_the_simulator(tmp_path: Path, kind: FeatureKind) -> None:
    device, _ = joined(tmp_path)
    parts = assemble(load_experiment(None, [*SETTINGS, f"data.devices={DEVICES}", "fleet.slots=1"]))
    weights = parts.task.model.save()
    reply = device(message(wire.FEATURES, wire.encode_feature_query(FeatureQuery(weights, kind))), CONTEXT)
    width = make_server_task(for_devices(load_experiment(None, SETTINGS), DEVICES)).feature_width(kind)
    assert np.array_equal(wire.decode_features(reply.content, width), parts.task.features(weights, kind, [WHO])[0])


def test_all_that_leaves_a_device(tmp_path: Path) -> None:
    """Weights, size, features, time, energy: this test lists every field of every reply."""
    device, greeting = joined(tmp_path)
    weights = np.zeros(greeting.weights, dtype=np.float32)
    hello = device(message(wire.HELLO, wire.encode_greeting(greeting.text())), CONTEXT)
    assert wire.decode_hello(hello.content)[1] is False, "the same process, greeted again"
    trained = device(message(wire.TRAIN, wire.encode_job(TrainingJob(1, weights, Objective()))), CONTEXT)
    features = device(message(wire.FEATURES, wire.encode_feature_query(FeatureQuery(weights, "activations"))), CONTEXT)
    found = [{name: sorted(record) for name, record in reply.content.items()} for reply in (hello, trained, features)]
    assert found == [
        {"values": ["fresh", "samples"]},
        {"values": ["joules", "loss", "losses", "numbers", "seconds"]},
        {"values": ["numbers"]},
    ]


def test_noise_on_features_differs_every_time(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path, "privacy.feature_clip=1.0", "privacy.feature_noise=0.5")
    query = wire.encode_feature_query(FeatureQuery(np.zeros(greeting.weights, dtype=np.float32), "labels"))
    one, other = (wire.decode_features(device(message(wire.FEATURES, query), CONTEXT).content, 10) for _ in range(2))
    assert not np.array_equal(one, other)


def test_a_device_runs_no_code_the_server_names(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path)
    foreign = greeting.task.model_copy(update={"model": "os:system"})
    with pytest.raises(UserError, match="model = 'os:system': not a built-in model; accepted: the models of `cabafl"):
        device.join(greeting.model_copy(update={"task": foreign}))


def test_a_device_reads_no_file_the_server_names(tmp_path: Path) -> None:
    experiment = for_devices(load_experiment(None, [*SETTINGS, "data.root=/somewhere"]), DEVICES)
    task = make_server_task(for_devices(load_experiment(None, SETTINGS), DEVICES))
    assert Greeting.of(experiment, task, DEVICES).data.root is None
    device, greeting = joined(tmp_path)
    named = greeting.model_copy(update={"data": greeting.data.model_copy(update={"root": "/etc", "test_limit": 7})})
    assert device.join(named) == device.samples  # type: ignore[attr-defined]


def test_a_job_before_the_greeting_is_refused(tmp_path: Path) -> None:
    device = Participant(Device(tmp_path, "server:1", WHO, WHO))
    job = wire.encode_job(TrainingJob(1, np.zeros(4, dtype=np.float32), Objective()))
    with pytest.raises(UserError, match="before a greeting"):
        device(message(wire.TRAIN, job), CONTEXT)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "mapping|not a"),
        ('{"seed": 1}', "greeting"),
        ("not json", "Expecting value"),
    ],
)
def test_texts_that_are_not_greetings(tmp_path: Path, text: str, complaint: str) -> None:
    device = Participant(Device(tmp_path, "server:1", WHO, WHO))
    with pytest.raises((UserError, ValueError, TypeError), match=complaint):
        device(message(wire.HELLO, wire.encode_greeting(text)), CONTEXT)


def own_samples() -> tuple[Any, Any]:
    return np.zeros((4, 1, 28, 28), dtype=np.uint8), np.array([0, 1, 2, 9])


def wrong_shape() -> tuple[Any, Any]:
    return np.zeros((4, 28, 28), dtype=np.uint8), np.array([0, 1, 2, 9])


def wrong_labels() -> tuple[Any, Any]:
    return np.zeros((1, 1, 28, 28), dtype=np.uint8), np.array([10])


def test_a_loader_of_the_user(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path, data=f"{__name__}:own_samples")
    assert device.samples == 4  # type: ignore[attr-defined]
    weights = np.zeros(greeting.weights, dtype=np.float32)
    row = device(message(wire.FEATURES, wire.encode_feature_query(FeatureQuery(weights, "labels"))), CONTEXT)
    assert wire.decode_features(row.content, 10).tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("wrong_shape", r"returns shapes \(4, 28, 28\) and \(4,\); accepted: n x \(1, 28, 28\) and n labels"),
        ("wrong_labels", "labels from 10 to 10; accepted: 0 to 9"),
        ("missing", "cannot be used: module"),
    ],
)
def test_a_loader_with_wrong_samples_is_refused(tmp_path: Path, name: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        joined(tmp_path, data=f"{__name__}:{name}")


def test_a_partition_id_out_of_range_is_refused(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path)
    device.device = replace(device.device, partition=DEVICES)
    device.greeting = None
    with pytest.raises(UserError, match="partition-id = 5: accepted: 0 to 4"):
        device.join(greeting)


def test_a_pace_makes_a_fast_machine_slow(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path, pace=0.5)
    job = wire.encode_job(TrainingJob(1, np.zeros(greeting.weights, dtype=np.float32), Objective(epochs=1)))
    found = wire.decode_reply(device(message(wire.TRAIN, job), CONTEXT).content, greeting.weights)
    assert found.seconds >= 0.5
    assert found.joules >= 5.0
