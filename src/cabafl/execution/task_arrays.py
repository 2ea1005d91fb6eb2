"""A task in another process: its large arrays are shared, the rest travels as a `TaskSpec`."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cabafl.data.dataset import Partition, Split
from cabafl.learning.panel import Panel
from cabafl.learning.spec import TaskSpec
from cabafl.learning.task import Task

Arrays = dict[str, npt.NDArray[Any]]


def arrays_of(task: Task) -> Arrays:
    """The samples and the partition of a task."""
    data, panel = task.dataset, task.panel
    of_panel = (
        {}
        if panel is None
        else {
            "panel": panel.devices,
            "panel indices": panel.samples.indices,
            "panel offsets": panel.samples.offsets,
            "panel of test": np.array([panel.of_test]),
        }
    )
    return {
        **of_panel,
        "train x": data.train.x.numpy(),
        "train y": data.train.y.numpy(),
        "test x": data.test.x.numpy(),
        "test y": data.test.y.numpy(),
        "indices": task.partition.indices,
        "offsets": task.partition.offsets,
    }


def build_task(spec: TaskSpec, processor: str, arrays: Arrays) -> Task:
    """Rebuilds a task in a worker, on the shared arrays."""
    task = spec.build(spec.dataset(*_splits(arrays)), _partition(arrays), processor)
    if "panel" in arrays:
        samples = Partition(arrays["panel indices"], arrays["panel offsets"])
        task.panel = Panel(arrays["panel"], samples, bool(arrays["panel of test"][0]))
    return task


def use_arrays(task: Task, arrays: Arrays) -> None:
    """Makes a task use the shared arrays, which frees the memory of its own copies."""
    train, test = _splits(arrays)
    task.dataset = task.dataset.with_train(train).with_test(test)
    task.partition = _partition(arrays)


def _splits(arrays: Arrays) -> tuple[Split, Split]:
    train, test = (
        Split(torch.from_numpy(arrays[f"{part} x"]), torch.from_numpy(arrays[f"{part} y"]))
        for part in ("train", "test")
    )
    return train, test


def _partition(arrays: Arrays) -> Partition:
    return Partition(arrays["indices"], arrays["offsets"])
