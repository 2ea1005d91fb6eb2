"""A device with samples of its own: the loader of its owner."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cabafl.deployment.device.participant import Participant
from cabafl.deployment.device.terms import Terms
from cabafl.deployment.folder.layout import Device
from cabafl.errors import UserError
from tests.deployment.test_participant import DEVICES, WHO, greeting_of, joined, question, zeros


def own_samples() -> tuple[Any, Any]:
    return np.zeros((4, 1, 28, 28), dtype=np.uint8), np.array([0, 1, 2, 9])


def wrong_shape() -> tuple[Any, Any]:
    return np.zeros((4, 28, 27), dtype=np.uint8), np.array([0, 1, 2, 9])


def wrong_lengths() -> tuple[Any, Any]:
    return np.zeros((4, 28, 28), dtype=np.uint8), np.array([0, 1, 2])


def numbers_to_predict() -> tuple[Any, Any]:
    return np.zeros((2, 28, 28), dtype=np.uint8), np.array([0.5, 1.5])


def fractions() -> tuple[Any, Any]:
    return np.zeros((4, 1, 28, 28)), np.array([0, 1, 2, 9])


def one_number() -> tuple[Any, Any]:
    return np.array(0.5), np.array(1)


def text(device: int | None) -> tuple[Any, Any]:
    return np.arange(24).reshape(6, 4) % 12, np.arange(6) + 6


def strange_text(device: int | None) -> tuple[Any, Any]:
    return np.arange(24).reshape(6, 4) % 13, np.arange(6)


def test_text_of_a_device(tmp_path: Path) -> None:
    words = [f"data.dataset={__name__}:text", "data.partition=natural", "data.train_limit=none", "model.name=lstm"]
    greeting = greeting_of(*words, "task.name=next-token")
    assert (greeting.task.kind, greeting.task.classes) == ("text", 12)
    device = Device(tmp_path, "server:1", WHO, WHO, data=f"{__name__}:text")
    assert Participant(device).join(greeting) == 6
    with pytest.raises(
        UserError, match="strange_text': cannot be used: x has symbols from 0 to 12; accepted: from 0 to 11"
    ):
        Participant(replace(device, data=f"{__name__}:strange_text")).join(greeting)


def nothing() -> tuple[Any, Any]:
    return np.zeros((0, 28, 28), dtype=np.uint8), np.zeros(0, dtype=int)


def wrong_labels() -> tuple[Any, Any]:
    return np.zeros((1, 1, 28, 28), dtype=np.uint8), np.array([10])


def no_file() -> tuple[Any, Any]:
    raise FileNotFoundError("no such readings")


def of_device(device: int | None) -> tuple[Any, Any]:
    count = 20 if device is None else 2 + device
    return np.zeros((count, 28, 28), dtype=np.uint8), np.arange(count) % 10


def everything() -> dict[str, Any]:
    owner = np.repeat(np.arange(DEVICES), 12)
    pixels = np.repeat(owner.astype(np.uint8), 28 * 28).reshape(-1, 28, 28)
    return {"x_train": pixels, "y_train": owner, "user_train": owner, "x_test": pixels, "y_test": owner}


def test_a_loader_that_takes_the_number_of_the_device(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path, data=f"{__name__}:of_device")
    assert device.join(greeting) == 2 + WHO


def test_of_a_loader_that_returns_everything_a_device_takes_its_part(tmp_path: Path) -> None:
    settings = [f"data.dataset={__name__}:everything", "data.partition=natural", "data.train_limit=none"]
    greeting = greeting_of(*settings)
    assert (greeting.task.classes, greeting.task.input_shape) == (DEVICES, (1, 28, 28))
    device = Participant(
        Device(tmp_path, "server:1", WHO, WHO, data=f"{__name__}:everything", terms=Terms(labels=True))
    )
    assert device.join(greeting) == 12
    row = device.features(question(zeros(greeting), "labels")).features
    assert row.tolist() == [0, 0, 0, 12, 0]


def test_a_device_calls_no_function_the_server_names_unless_its_owner_allows_it(tmp_path: Path) -> None:
    greeting = greeting_of(f"data.dataset={__name__}:of_device", "data.partition=natural", "data.train_limit=none")
    device = Device(tmp_path, "server:1", WHO, WHO)
    with pytest.raises(
        UserError, match=r"data\.dataset = '.*:of_device': not a built-in data set; accepted: `data` in dev"
    ):
        Participant(device).join(greeting)
    assert Participant(replace(device, allow_modules=True)).join(greeting) == 2 + WHO


def named_labels() -> tuple[Any, Any]:
    return np.zeros((2, 28, 28), dtype=np.uint8), ["b", "d"]


def test_text_labels_are_numbered_as_on_the_server(tmp_path: Path) -> None:
    greeting = greeting_of()
    task = greeting.task.model_copy(update={"class_names": tuple("abcdefghij")})
    device = Participant(
        Device(tmp_path, "server:1", WHO, WHO, data=f"{__name__}:named_labels", terms=Terms(labels=True))
    )
    assert device.join(greeting.model_copy(update={"task": task})) == 2
    row = device.features(question(zeros(greeting), "labels")).features
    assert row.tolist() == [0, 1, 0, 1, 0, 0, 0, 0, 0, 0]
    other = greeting.model_copy(update={"task": greeting.task.model_copy(update={"class_names": ("x", "y")})})
    with pytest.raises(UserError, match="label 'b' is not a class of the test samples; accepted: x, y"):
        device.join(other)


def test_a_loader_of_the_user(tmp_path: Path) -> None:
    device, greeting = joined(tmp_path, data=f"{__name__}:own_samples", terms=Terms(labels=True))
    assert device.join(greeting) == 4
    row = device.features(question(zeros(greeting), "labels")).features
    assert row.tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("wrong_shape", r"x has shape \(4, 1, 28, 27\); accepted: n x \(1, 28, 28\)"),
        ("wrong_labels", "labels from 10 to 10; accepted: class numbers from 0 to 9"),
        ("wrong_lengths", r"y has shape \(3,\); \(4,\)"),
        (
            "numbers_to_predict",
            r"targets of the data are float32 of shape .*; accepted: class numbers, one per",
        ),
        ("nothing", "the device has no samples"),
        ("fractions", r"x is torch\.float32; accepted: pixels as bytes, as the server's test samples are"),
        ("one_number", r"x is empty or a single number \(shape \(\)\)"),
        ("no_file", r"cannot be used: no such readings \(test_own_data\.py, line \d+\)"),
        ("missing", "cannot be used: module"),
    ],
)
def test_a_loader_with_wrong_samples_is_refused(tmp_path: Path, name: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        joined(tmp_path, data=f"{__name__}:{name}")
