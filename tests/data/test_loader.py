"""The user's own function as a data set, in a simulation and on a server."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cabafl import simulate
from cabafl.assembly import assemble, make_server_task
from cabafl.config import load_experiment
from cabafl.data.arrays import moments
from cabafl.errors import UserError
from cabafl.samples import make_data

SETTINGS = ["model.name=mlp", "data.min_samples=1", "fleet.slots=2", "run.virtual_time=30", "run.workers=0"]
DEVICES = 4


def rows(count: int, seed: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 3, count)
    y[:3] = (0, 1, 2)
    return (draw.random((count, 5)) + y[:, None]).astype(np.float32), y


def own(device: int | None) -> tuple[Any, Any]:
    return rows(30, 99) if device is None else rows(10 + device, device)


def own_text(device: int | None) -> tuple[Any, Any]:
    x, y = own(device)
    return torch.from_numpy(x), [("cold", "mild", "warm")[each] for each in y]


def own_images(device: int | None = None) -> tuple[Any, Any]:
    x, y = own(device)
    return (x[:, :4].reshape(-1, 2, 2) * 50).astype(np.uint8), y


def whole() -> dict[str, Any]:
    x, y = rows(60, 1)
    test_x, test_y = rows(9, 2)
    users = [f"user {each % 6}" for each in range(60)]
    return {"x_train": x, "y_train": y.tolist(), "user_train": users, "x_test": test_x, "y_test": test_y}


def whole_pair() -> tuple[Any, Any]:
    return rows(60, 1)


def numbers() -> dict[str, Any]:
    found = whole()
    return found | {"y_train": found["x_train"].sum(axis=1), "y_test": found["x_test"].sum(axis=1)}


def broken(device: int | None) -> tuple[Any, Any]:
    return own(device)[0] / 0 if device is None else own(device), dict[str, Any]()["no such key"]


def sometimes_wide(device: int | None) -> tuple[Any, Any]:
    x, y = own(device)
    return (x[:, :3] if device == 2 else x), y


def new_label(device: int | None) -> tuple[Any, Any]:
    x, y = own(device)
    return x, (y + 1 if device == 2 else y)


def no_pair(device: int | None) -> Any:
    return {"x": own(device)[0]}


def negative(device: int | None) -> tuple[Any, Any]:
    x, y = own(device)
    return x, y - 1


def far_labels(device: int | None) -> tuple[Any, Any]:
    x, y = own(device)
    return x, y + 10**8


def one_label(device: int | None) -> tuple[Any, Any]:
    x, y = own(device)
    return x, y * 0


def fractions_on_devices(device: int | None) -> tuple[Any, Any]:
    x, y = own(device)
    return x, y if device is None else y * 1.0


def shifted(device: int | None) -> tuple[Any, Any]:
    """As many samples as labels over all devices, but not on each."""
    x, y = own(device)
    return x, np.append(y, 0) if device == 0 else y[:-1] if device == 1 else y


def single_numbers(device: int | None) -> tuple[Any, Any]:
    return np.array(1.0), np.array(1)


def leaves(device: int | None) -> tuple[Any, Any]:
    sys.exit("enough")


def greedy() -> Any:
    raise MemoryError("40 TB")


def no_memory_of_it() -> Any:
    raise ValueError("no memory of this word")


def sparse(device: int | None) -> tuple[Any, Any]:
    x, y = own(device)
    return torch.from_numpy(x).to_sparse(), y


def settings(function: Callable[..., Any], *more: str) -> list[str]:
    return [f"data.dataset={__name__}:{function.__name__}", *SETTINGS, *more]


def natural(function: Callable[..., Any], *more: str) -> list[str]:
    return settings(function, "data.partition=natural", f"data.devices={DEVICES}", *more)


def test_each_device_has_the_samples_that_the_function_returns_for_it() -> None:
    data, partition = make_data(load_experiment(None, natural(own)))
    assert (data.classes, data.class_names, data.input_shape, len(data.test)) == (3, (), (5,), 30)
    for device in range(DEVICES):
        x, y = own(device)
        index = torch.from_numpy(partition.device(device))
        assert np.array_equal(data.train.x[index].numpy(), x)
        assert np.array_equal(data.train.y[index].numpy(), y)


def test_a_server_asks_for_the_test_samples_only_and_says_so() -> None:
    said: list[str] = []
    experiment = load_experiment(None, natural(own_images, "data.test_limit=20"))
    task = make_server_task(experiment, said.append)
    assert said == [f"{__name__}:own_images: 20 test samples; the devices bring their own to train on"]
    assert (len(task.dataset.train), len(task.dataset.test), task.spec.classes) == (0, 20, 3)
    simulated = make_data(experiment)[0]
    assert (simulated.mean, simulated.deviation) == moments(own_images(None)[0][:, None])
    assert (task.spec.mean, task.spec.deviation) == (simulated.mean, simulated.deviation), "the same as in a simulation"


def test_text_labels_keep_their_names() -> None:
    experiment = load_experiment(None, natural(own_text))
    data, _ = make_data(experiment)
    assert (data.classes, data.class_names) == (3, ("cold", "mild", "warm"))
    assert np.array_equal(data.test.y.numpy(), own(None)[1])
    assert make_server_task(experiment).spec.class_names == ("cold", "mild", "warm")


def test_a_function_without_arguments_returns_everything() -> None:
    data, partition = make_data(load_experiment(None, settings(whole, "data.partition=natural")))
    assert (len(partition), len(data.train), len(data.test)) == (6, 60, 9)
    assert len(make_data(load_experiment(None, settings(whole, "data.partition=iid", "data.devices=7")))[1]) == 7


def test_a_run_on_own_data_repeats_and_uses_workers(tmp_path: Path) -> None:
    for place, workers in enumerate((0, 1)):
        experiment = load_experiment(None, [*natural(own), f"run.workers={workers}"])
        simulate(experiment, tmp_path / str(place))
    for name in ("events.jsonl", "metrics.csv", "model.safetensors"):
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (settings(own, "data.devices=4"), "data.partition = 'dirichlet': .*own gives each device its own samples; acc"),
        (settings(own, "data.partition=natural"), "data.devices = 'auto': .*own takes the number of a device"),
        (settings(whole_pair), "it returns x, y, the samples of one device; accepted here: x_train"),
        (settings(numbers), "data.partition = 'dirichlet': the samples have no classes"),
        (settings(numbers, "data.partition=shards"), "data.partition = 'shards': the samples have no classes"),
        (settings(numbers, "data.partition=iid", "data.devices=3"), "the targets of the data are float32"),
        (natural(broken), r"cannot be used: KeyError: 'no such key' \(test_loader\.py, line \d+\)"),
        (natural(sometimes_wide), "x has not the same shape and type on all devices"),
        (natural(new_label), "labels from 0 to 3, but those of the test samples end at 2"),
        (natural(no_pair), "for device 0 it returns a dict; accepted: arrays x, y"),
        (
            natural(negative),
            "the labels of the test samples are from -1 to 1; accepted: two classes or more, as text or",
        ),
        (natural(far_labels), "the labels of the test samples are from 100000000 to 100000002; accepted: two classes"),
        (natural(one_label), "the labels of the test samples are from 0 to 0; accepted: two classes or more"),
        (natural(fractions_on_devices), "y_train is float64 of shape .* but y_test is int64"),
        (
            natural(shifted),
            r"for device 0 it returns x of shape \(10, 5\), y of shape \(11,\); accepted: one target per",
        ),
        (
            natural(single_numbers),
            r"for device 0 it returns x of shape \(\), y of shape \(\); accepted: one target per",
        ),
        (natural(leaves), r"cannot be used: SystemExit: enough \(test_loader\.py, line \d+\)"),
        (settings(greedy), r"cannot be used: MemoryError: 40 TB \(test_loader\.py, line \d+\)"),
        (settings(no_memory_of_it), r"cannot be used: ValueError: no memory of this word"),
        (natural(sparse), "cannot be used: x is a Tensor that is no array"),
        (["data.dataset=nowhere:load"], "data.dataset = 'nowhere:load': cannot be used: No module named 'nowhere'"),
        ([f"data.dataset={__name__}:absent"], "cannot be used: module .* has no attribute 'absent'"),
        ([f"data.dataset={__name__}:DEVICES"], "is a int; accepted: a function"),
        (["data.dataset=given"], "data.dataset = 'given': handed in from Python; accepted: simulate or resume with"),
    ],
)
def test_mistakes_are_one_line(words: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        assemble(load_experiment(None, words))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("partition", ["iid", "natural"])
def test_data_without_classes_can_be_split(partition: str) -> None:
    data, found = make_data(load_experiment(None, settings(numbers, f"data.partition={partition}", "data.devices=3")))
    assert (data.classes, data.train.y.dtype, len(found)) == (0, torch.float32, 3)
