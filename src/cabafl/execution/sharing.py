"""The arrays of a task in memory that several processes share; the rest of it travels as a `TaskSpec`."""

from typing import Any

import numpy.typing as npt
import torch

from cabafl.data.dataset import Split
from cabafl.data.partition import Partition
from cabafl.learning.spec import TaskSpec
from cabafl.learning.task import Task

Arrays = dict[str, npt.NDArray[Any]]


def arrays_of(task: Task) -> Arrays:
    """Samples and partition."""
    data = task.dataset
    return {
        "train x": data.train.x.numpy(),
        "train y": data.train.y.numpy(),
        "test x": data.test.x.numpy(),
        "test y": data.test.y.numpy(),
        "indices": task.partition.indices,
        "offsets": task.partition.offsets,
    }


def build_task(spec: TaskSpec, processor: str, arrays: Arrays) -> Task:
    """The task a worker computes with."""
    return spec.build(spec.dataset(*_splits(arrays)), _partition(arrays), processor)


def share(task: Task, arrays: Arrays) -> None:
    """Lets a task use the shared arrays instead of its own, whose memory is then free."""
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
