"""A task taken apart, so that another process can build the same one: plain settings, and arrays to share."""

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch

from cabafl import models
from cabafl.data.dataset import Dataset, Kind, Split
from cabafl.data.partition import Partition
from cabafl.learning.privacy import FeaturePrivacy
from cabafl.learning.task import Task
from cabafl.learning.training import LocalTraining
from cabafl.learning.weights import FlatModel

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Recipe:
    """Everything of a task but its arrays."""

    model: str
    kind: Kind
    input_shape: tuple[int, ...]
    classes: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    settings: LocalTraining
    seed: int
    feature_layer: str | None
    device: str
    privacy: FeaturePrivacy
    weights: int  # entries of a flat model


def take_apart(task: Task, model: str) -> tuple[Recipe, Arrays]:
    """The recipe and the arrays of a task; ``model`` is the network's name in the experiment."""
    data = task.dataset
    recipe = Recipe(
        model=model,
        kind=data.kind,
        input_shape=data.input_shape,
        classes=data.classes,
        mean=data.mean,
        deviation=data.deviation,
        settings=task.settings,
        seed=task.seed,
        feature_layer=task.feature_layer,
        device=str(task.device),
        privacy=task.privacy,
        weights=task.model.layout.size,
    )
    arrays = {
        "train x": data.train.x.numpy(),
        "train y": data.train.y.numpy(),
        "test x": data.test.x.numpy(),
        "test y": data.test.y.numpy(),
        "indices": task.partition.indices,
        "offsets": task.partition.offsets,
    }
    return recipe, arrays


def put_together(recipe: Recipe, arrays: Arrays) -> Task:
    """The same task on the given arrays; the network's initial weights do not matter, every job brings its own."""
    data = Dataset(
        "shared",
        recipe.kind,
        Split(torch.from_numpy(arrays["train x"]), torch.from_numpy(arrays["train y"])),
        Split(torch.from_numpy(arrays["test x"]), torch.from_numpy(arrays["test y"])),
        recipe.classes,
        recipe.mean,
        recipe.deviation,
    )
    network = models.build(recipe.model, recipe.kind, recipe.input_shape, recipe.classes)
    network = network.to(recipe.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    partition = Partition(arrays["indices"], arrays["offsets"])
    return Task(
        data,
        partition,
        FlatModel(network),
        recipe.settings,
        recipe.seed,
        recipe.feature_layer,
        recipe.device,
        recipe.privacy,
    )


def share(task: Task, arrays: Arrays) -> None:
    """Lets a task use the shared arrays in the place of its own, whose memory is then free."""
    train = Split(torch.from_numpy(arrays["train x"]), torch.from_numpy(arrays["train y"]))
    test = Split(torch.from_numpy(arrays["test x"]), torch.from_numpy(arrays["test y"]))
    task.dataset = task.dataset.with_train(train).with_test(test)
    task.partition = Partition(arrays["indices"], arrays["offsets"])
