"""A device without a network: what it answers, what it refuses, and that nothing else leaves it."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cabafl.assembly import assemble, make_server_task
from cabafl.config import Experiment, load_experiment
from cabafl.data.dataset import Dataset, Partition
from cabafl.deployment.device import participant as module
from cabafl.deployment.device.participant import Participant
from cabafl.deployment.device.terms import AgainstTerms, Terms, When, tellable
from cabafl.deployment.folder.layout import Device
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.messages import FeatureQuery, FeatureReply, TrainingJob, TrainingReply
from cabafl.errors import UserError
from cabafl.learning.dp import epsilon_of
from cabafl.methods.base import PLAIN, FeatureKind, Objective, Weights
from cabafl.samples import make_data

DEVICES, WHO = 5, 3
SETTINGS = [
    "data.train_limit=300",
    "data.test_limit=20",
    f"data.devices={DEVICES}",
    "fleet.slots=1",
    "model.name=mlp",
    "training.epochs=2",
]
DP = ["privacy.dp_clip=1.0", "privacy.dp_noise=0.8"]


def greeting_of(*settings: str) -> Greeting:
    experiment = load_experiment(None, [*SETTINGS, *settings])
    return Greeting.of(experiment, make_server_task(experiment), DEVICES)


def joined(tmp_path: Path, *settings: str, **more: Any) -> tuple[Participant, Greeting]:
    greeting = greeting_of(*settings)
    device = Participant(Device(tmp_path, "server:1", WHO, WHO, **more))
    device.join(greeting)
    return device, greeting


def zeros(greeting: Greeting) -> Weights:
    return np.zeros(greeting.weights, dtype=np.float32)


def question(weights: Weights, kind: FeatureKind = "activations") -> FeatureQuery:
    return FeatureQuery(1, weights=weights, kind=kind)


def never() -> bool:
    return False


def after(calls: int) -> Callable[[], bool]:
    """Says yes from the given call on."""
    seen: list[None] = []

    def cancelled() -> bool:
        seen.append(None)
        return len(seen) > calls

    return cancelled


def trained(device: Participant, job: TrainingJob) -> TrainingReply:
    reply = device.train(job, never)
    assert reply is not None
    return reply


def test_a_job_gives_the_bits_of_the_simulator(tmp_path: Path) -> None:
    device, _ = joined(tmp_path)
    parts = assemble(load_experiment(None, SETTINGS))
    weights = parts.task.model.save()
    how = Objective(epochs=1, lr_scale=0.5, prox=0.1, report_loss=True)
    found = trained(device, TrainingJob(17, weights, how))
    expected = parts.task.train(17, WHO, weights, how)
    assert np.array_equal(found.weights, expected.weights)
    assert found.loss == expected.loss
    assert found.seconds > 0
    assert found.joules == pytest.approx(10.0 * found.seconds, rel=0.2)


def test_the_pace_follows_the_steps_that_are_made(tmp_path: Path) -> None:
    """60 samples in batches of 50, two epochs: one of four steps is 50 of 120 samples."""
    device, greeting = joined(tmp_path, "training.max_steps=1", "training.batch_size=50", pace=2.0)
    share = min(50, device.join(greeting)) / device.join(greeting) / 2
    found = trained(device, TrainingJob(1, zeros(greeting), Objective()))
    assert (found.steps, found.epochs) == (1, 1)
    assert 2 * share <= found.seconds < 2 * share + 0.5


@pytest.mark.parametrize("kind", ["activations", "activation_counts", "labels"])
def test_features_are_those_of_the_simulator(tmp_path: Path, kind: FeatureKind) -> None:
    device, _ = joined(tmp_path, terms=Terms(labels=True))
    parts = assemble(load_experiment(None, SETTINGS))
    weights = parts.task.model.save()
    assert np.array_equal(
        device.features(question(weights, kind)).features, parts.task.features(weights, kind, [WHO])[0]
    )


def test_all_that_leaves_a_device(tmp_path: Path) -> None:
    """Weights, size, features, time, energy, steps: this test lists every field of every answer."""
    device, greeting = joined(tmp_path)
    assert type(device.join(greeting)) is int
    reply = trained(device, TrainingJob(1, zeros(greeting), PLAIN))
    assert reply._fields == ("weights", "seconds", "joules", "loss", "square_loss", "steps", "epochs")
    assert (reply.loss, reply.square_loss) == (None, None), "only if the job asks for it"
    assert device.features(question(zeros(greeting)))._fields == ("features",)
    assert FeatureReply._fields == ("features",)


def test_of_a_failure_only_the_class_leaves_the_device() -> None:
    assert tellable(OSError("/home/somebody/readings.npz")) == "OSError"
    assert tellable(UserError("data = 'private:load': cannot be used")) == "UserError"
    assert tellable(AgainstTerms("privacy.feature_clip: not set")) == "privacy.feature_clip: not set"


def test_noise_on_features_differs_every_time(tmp_path: Path) -> None:
    device, greeting = joined(
        tmp_path, "privacy.feature_clip=1.0", "privacy.feature_noise=0.5", terms=Terms(labels=True)
    )
    one, other = (device.features(question(zeros(greeting), "labels")).features for _ in range(2))
    assert not np.array_equal(one, other)


def test_the_devices_noise_is_added_whatever_the_experiment_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clip = "privacy.feature_clip=2.0"
    device, greeting = joined(tmp_path, clip, terms=Terms(labels=True, feature_noise=5.0))
    rows = np.array([device.features(question(zeros(greeting), "labels")).features for _ in range(300)])
    assert rows.std(axis=0).mean() == pytest.approx(10.0, rel=0.1), "noise times clip"
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("terms:")]
    assert said == ["terms: label counts if asked; feature noise 5 instead of 0"]


def test_a_question_without_a_clip_is_refused_but_the_device_trains(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path, terms=Terms(feature_noise=0.5))
    with pytest.raises(AgainstTerms, match=r"^privacy.feature_clip: not set, but the device.*; accepted: a number"):
        device.features(question(zeros(greeting)))
    assert trained(device, TrainingJob(1, zeros(greeting), PLAIN)).seconds > 0


def test_label_counts_are_not_told_by_default(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path)
    with pytest.raises(AgainstTerms, match="features = labels: the device tells no label counts"):
        device.features(question(zeros(greeting), "labels"))
    assert len(device.features(question(zeros(greeting))).features) > 0


def test_questions_are_counted_over_restarts_and_refused_ones_are_free(tmp_path: Path) -> None:
    terms = Terms(feature_questions_per_day=2)
    device, greeting = joined(tmp_path, terms=terms)
    for _ in range(3):
        with pytest.raises(AgainstTerms, match="no label counts"):
            device.features(question(zeros(greeting), "labels"))
    device.features(question(zeros(greeting)))
    again, _ = joined(tmp_path, terms=terms)
    again.features(question(zeros(greeting)))
    with pytest.raises(AgainstTerms, match="feature_questions_per_day = 2: the device has answered 2 in the last 24"):
        again.features(question(zeros(greeting)))


def test_a_device_that_wants_dp_does_not_join_without(tmp_path: Path) -> None:
    device = Participant(Device(tmp_path, "server:1", WHO, WHO, terms=Terms(dp=True)))
    with pytest.raises(AgainstTerms, match=r"^privacy.dp_noise = 0: .* DP-SGD only .* accepted: privacy.dp_clip and"):
        device.join(greeting_of())
    with pytest.raises(UserError, match="before a greeting"):
        device.train(TrainingJob(1, np.zeros(1, dtype=np.float32), PLAIN), never)
    assert device.join(greeting_of(*DP)) > 0


def test_conditions_hold_whoever_asks_for_a_job(tmp_path: Path) -> None:
    noon = time.mktime((2026, 1, 5, 12, 0, 0, 0, 0, -1))
    now = [noon]
    own = Device(tmp_path, "server:1", WHO, WHO, when=When(hours="22-6"))
    device = Participant(own, clock=lambda: now[0])
    greeting = greeting_of()
    device.join(greeting)
    assert device.ready() == "outside its hours 22-6"
    with pytest.raises(AgainstTerms, match="not now: outside its hours 22-6"):
        device.train(TrainingJob(1, zeros(greeting), PLAIN), never)
    now[0] += 11 * 3600
    assert device.ready() is None
    assert trained(device, TrainingJob(1, zeros(greeting), PLAIN)).seconds > 0


def test_a_cancelled_job_stops_between_two_batches_and_leaves_no_trace(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path, "training.batch_size=10")
    fresh, _ = joined(tmp_path, "training.batch_size=10")
    job = TrainingJob(2, np.full(greeting.weights, 0.01, dtype=np.float32), PLAIN)
    assert device.train(TrainingJob(1, job.weights, PLAIN), after(3)) is None
    assert np.array_equal(trained(device, job).weights, trained(fresh, job).weights)
    assert device.train(job, lambda: True) is None


def test_a_cancelled_job_ends_its_pace(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path, pace=60.0)
    began = time.monotonic()
    assert device.train(TrainingJob(1, zeros(greeting), PLAIN), lambda: time.monotonic() > began + 0.5) is None
    assert time.monotonic() - began < 10


def test_dp_accounts_for_the_steps_that_were_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("opacus", reason="Opacus is not installed (extra `dp`)")
    caplog.set_level(logging.INFO)
    device, greeting = joined(tmp_path, *DP, "training.batch_size=10", data=f"{__name__}:forty_samples")
    job = TrainingJob(1, zeros(greeting), PLAIN)
    assert trained(device, job).loss is None
    assert device.train(job, after(3)) is None
    assert device.train(job, lambda: True) is None
    other = greeting_of("privacy.dp_clip=1.0", "privacy.dp_noise=0.5", "training.batch_size=10")
    device.join(other)
    assert device.train(job, after(1)) is None
    spent = epsilon_of({(0.8, 0.25): 2 * 4 + 3, (0.5, 0.25): 1}, 1e-5)
    last = [record.getMessage() for record in caplog.records if "epsilon" in record.getMessage()][-1]
    assert last == f"privacy since the start of this process: epsilon {spent:.2f} at delta 1e-05"


def test_samples_are_loaded_again_only_for_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[int] = []

    def counted(experiment: Experiment, dataset: Dataset | None = None) -> tuple[Dataset, Partition]:
        loads.append(experiment.seed)
        return make_data(experiment, dataset)

    monkeypatch.setattr(module, "make_data", counted)
    device, greeting = joined(tmp_path)
    device.join(greeting)
    device.leave()
    assert device.greeting is None
    with pytest.raises(UserError, match="before a greeting"):
        device.train(TrainingJob(1, zeros(greeting), PLAIN), never)
    device.join(greeting_of("training.epochs=1", "model.name=cnn", "data.test_limit=30"))
    assert loads == [1]
    device.join(greeting_of("data.beta=0.2"))
    device.join(greeting_of("data.beta=0.2", "seed=2"))
    assert loads == [1, 1, 2]


def test_a_device_runs_no_code_the_server_names(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path)
    foreign = greeting.task.model_copy(update={"model": "os:system"})
    with pytest.raises(UserError, match=r"model\.name = 'os:system': not built in; accepted: what is built in"):
        device.join(greeting.model_copy(update={"task": foreign}))
    assert device.greeting is None, "it does not go on with the experiment before"


def test_a_device_reads_no_file_the_server_names(tmp_path: Path) -> None:
    experiment = load_experiment(None, [*SETTINGS, "data.root=/somewhere"])
    task = make_server_task(load_experiment(None, SETTINGS))
    assert Greeting.of(experiment, task, DEVICES).data.root is None
    device, greeting = joined(tmp_path)
    samples = device.join(greeting)
    named = greeting.data.model_copy(update={"root": "/etc", "min_samples": 9})
    assert device.join(greeting.model_copy(update={"data": named})) == samples


def test_work_before_the_greeting_is_refused(tmp_path: Path) -> None:
    device = Participant(Device(tmp_path, "server:1", WHO, WHO))
    with pytest.raises(UserError, match="before a greeting"):
        device.train(TrainingJob(1, np.zeros(4, dtype=np.float32), PLAIN), never)
    with pytest.raises(UserError, match="before a greeting"):
        device.features(question(np.zeros(4, dtype=np.float32)))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "mapping|not a"),
        ('{"seed": 1}', "greeting"),
        ("not json", "Expecting value"),
    ],
)
def test_texts_that_are_not_greetings(text: str, complaint: str) -> None:
    with pytest.raises((UserError, ValueError, TypeError), match=complaint):
        Greeting.read(text)


def forty_samples() -> tuple[Any, Any]:
    return torch.zeros((40, 1, 28, 28), dtype=torch.uint8), torch.arange(40) % 10


def test_a_partition_id_out_of_range_is_refused(tmp_path: Path) -> None:
    own = Device(tmp_path, "server:1", WHO, WHO)
    with pytest.raises(UserError, match="partition-id = 5: accepted: 0 to 4"):
        Participant(replace(own, partition=DEVICES)).join(greeting_of())


def test_idle_time_is_reported_with_the_next_job(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path, watts=0.0, idle_watts=2.0)
    device._idle_since -= 100.0
    assert trained(device, TrainingJob(1, zeros(greeting), PLAIN)).joules == pytest.approx(200.0, abs=20.0)
    assert trained(device, TrainingJob(2, zeros(greeting), PLAIN)).joules < 20.0, "counted once"
    device._idle_since -= 100.0
    device.join(greeting)
    assert trained(device, TrainingJob(1, zeros(greeting), PLAIN)).joules < 20.0, "of an earlier run"
    device._idle_since -= 100.0
    assert device.train(TrainingJob(2, zeros(greeting), PLAIN), after(0)) is None
    assert trained(device, TrainingJob(3, zeros(greeting), PLAIN)).joules > 180.0, "not lost with a cancelled job"


def test_a_pace_makes_a_fast_machine_slow(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path, pace=0.5)
    epochs = greeting.task.training.epochs
    for done in (epochs, 2 * epochs, 1):
        found = trained(device, TrainingJob(1, zeros(greeting), Objective(epochs=done)))
        assert found.seconds >= 0.5 * done / epochs
        assert found.joules >= 5.0 * done / epochs
    assert found.seconds < 0.5
