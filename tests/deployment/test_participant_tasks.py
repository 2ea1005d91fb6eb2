"""A device and other tasks than classification: it learns what the simulator learns, and refuses what does not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cabafl.assembly import assemble, make_server_task
from cabafl.config import load_experiment
from cabafl.deployment.device.participant import Participant
from cabafl.deployment.folder.layout import Device
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.messages import TrainingJob
from cabafl.errors import UserError
from cabafl.methods.base import Objective

DEVICES, WHO = 6, 4
HERE = "tests.deployment.test_participant_tasks"
SETTINGS = ["data.dataset=synthetic", f"data.devices={DEVICES}", "data.partition=natural", "data.min_samples=1"]
SETTINGS += ["fleet.slots=1", "training.epochs=2", "training.batch_size=7"]
TASKS = {
    "regression": ["model.name=mlp", "training.optimiser=adam", "training.clip_norm=0.1"],
    "multilabel": ["model.name=mlp", "training.nesterov=true", "training.max_steps=3"],
    "next-token": ["model.name=lstm", "training.label_smoothing=0.1"],
}


def greeting_of(*settings: str) -> Greeting:
    experiment = load_experiment(None, [*SETTINGS, *settings])
    return Greeting.of(experiment, make_server_task(experiment), DEVICES)


def device_of(tmp_path: Path, **more: Any) -> Participant:
    return Participant(Device(tmp_path, "server:1", WHO, WHO, **more))


def settings_of(task: str) -> list[str]:
    return [f"task.name={task}", *TASKS[task]]


@pytest.mark.parametrize("task", TASKS)
def test_a_job_gives_the_bits_of_the_simulator(tmp_path: Path, task: str) -> None:
    greeting = Greeting.read(greeting_of(*settings_of(task)).text())
    device = device_of(tmp_path)
    device.join(greeting)
    parts = assemble(load_experiment(None, [*SETTINGS, *settings_of(task)]))
    weights, how = parts.task.model.save(), Objective(lr_scale=0.5, report_loss=True)
    reply, expected = (
        device.train(TrainingJob(17, weights, how), lambda: False),
        parts.task.train(17, WHO, weights, how),
    )
    assert reply is not None
    np.testing.assert_array_equal(reply.weights, expected.weights)
    assert reply.loss == expected.loss


def test_another_task_has_other_samples(tmp_path: Path) -> None:
    device = device_of(tmp_path)
    for task in ("regression", "multilabel"):
        greeting = greeting_of(*settings_of(task))
        device.join(greeting)
        assert device.train(TrainingJob(1, np.zeros(greeting.weights, np.float32), Objective()), lambda: False)


@pytest.mark.parametrize(
    ("part", "change", "says"),
    [
        ("task", {"name": "os:system"}, "task.name = 'os:system': not built in; accepted: what is built in, or any"),
        ("training", {"optimiser": "os:system"}, "training.optimiser = 'os:system': not built in"),
        ("training", {"augment": "os:system"}, "training.augment = 'os:system': not built in"),
    ],
)
def test_a_device_runs_no_code_the_server_names(tmp_path: Path, part: str, change: dict[str, str], says: str) -> None:
    greeting = greeting_of(*settings_of("regression"))
    spec = greeting.task
    foreign = spec.model_copy(update={part: getattr(spec, part).model_copy(update=change)})
    with pytest.raises(UserError, match=says):
        device_of(tmp_path).join(greeting.model_copy(update={"task": foreign}))


def numbers() -> tuple[Any, Any]:
    return np.ones((5, 8), dtype=np.float32), np.linspace(0.0, 1.0, 5)


def pairs() -> tuple[Any, Any]:
    return np.ones((5, 8), dtype=np.float32), np.ones((5, 2))


def classes() -> tuple[Any, Any]:
    return np.ones((5, 8), dtype=np.float32), np.arange(5)


def test_samples_of_ones_own(tmp_path: Path) -> None:
    greeting = greeting_of(*settings_of("regression"))
    device = device_of(tmp_path, data=f"{HERE}:numbers")
    assert device.join(greeting) == 5
    reply = device.train(TrainingJob(1, np.zeros(greeting.weights, np.float32), Objective()), lambda: False)
    assert reply is not None
    assert reply.weights.any()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("pairs", r"targets of shape \(5, 2\); accepted: 1 per sample"),
        ("classes", r"the targets of the data are int64 of shape \(5,\); accepted: floating-point numbers"),
    ],
)
def test_samples_that_do_not_fit_the_task(tmp_path: Path, name: str, says: str) -> None:
    device = device_of(tmp_path, data=f"{HERE}:{name}")
    with pytest.raises(UserError, match=says):
        device.join(greeting_of(*settings_of("regression")))
