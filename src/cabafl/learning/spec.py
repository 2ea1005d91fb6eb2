"""The description of a task: this process, workers, Ray actors and devices build the same task from it."""

from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from cabafl import models
from cabafl.config import Experiment, PrivacySection, TaskSection, TrainingSection
from cabafl.data.dataset import Dataset, Kind, Partition, Split
from cabafl.data.raw import InputForm, Pixels
from cabafl.errors import UserError
from cabafl.learning.augmentation import check_augmentation
from cabafl.learning.builtin_tasks import chosen_metrics, find_task
from cabafl.learning.features import find_layer
from cabafl.learning.optimisers import check_optimiser
from cabafl.learning.task import FlatModel, Goal, Task
from cabafl.learning.training import seeded
from cabafl.own_code import blaming
from cabafl.rng import seed64
from cabafl.values import Width

LARGEST = 1_000_000
Count = Annotated[int, Field(ge=1, le=LARGEST)]


class TaskSpec(BaseModel):
    """Everything of a task but its samples: the network, the form of its inputs, local training and privacy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: Annotated[int, Field(ge=0)]
    model: str
    width: Width
    kind: Kind
    input_shape: Annotated[tuple[Count, ...], Field(min_length=1, max_length=4)]
    classes: Count  # outputs of the network
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    class_names: tuple[str, ...] = ()
    pixels: Pixels | None = None  # how images are stored; None: no images, or written by an older version
    feature_names: tuple[str, ...] = ()
    feature_layer: str | None  # None: the layer the network names
    task: TaskSection = TaskSection()
    training: TrainingSection
    privacy: PrivacySection

    @classmethod
    def of(cls, experiment: Experiment, dataset: Dataset) -> "TaskSpec":
        """The task of an experiment on data of this form; raises `UserError` if they do not go together."""
        learning = find_task(experiment.task)
        with blaming({"task.name": experiment.task.name}):
            try:
                for split in (dataset.test, dataset.train):
                    if len(split):
                        learning.check(split.y)
            except ValueError as error:
                raise UserError(f"task.name = {experiment.task.name!r}: {error}") from None
            outputs: object = learning.outputs(dataset.classes, dataset.test.y)
        own = ":" in experiment.task.name
        if not isinstance(outputs, int) or (own and not 1 <= outputs <= LARGEST):
            found = f"outputs() = {outputs!r:.80}; accepted: a whole number from 1 to {LARGEST:,}"
            raise UserError(f"task.name = {experiment.task.name!r}: {found}")
        if experiment.training.label_smoothing and not learning.smooths:
            raise UserError(
                f"training.label_smoothing = {experiment.training.label_smoothing}: task.name = "
                f"{experiment.task.name!r} has none; accepted: 0, or a task with classes"
            )
        check_optimiser(experiment.training)
        check_augmentation(experiment.training.augment, dataset.inputs(dataset.test.x[:2]))
        _check_size(experiment, dataset, outputs)
        return cls(
            seed=experiment.seed,
            model=experiment.model.name,
            width=experiment.model.width,
            kind=dataset.kind,
            input_shape=dataset.input_shape,
            classes=outputs,
            mean=dataset.mean,
            deviation=dataset.deviation,
            class_names=dataset.class_names,
            pixels=_pixels(dataset),
            feature_names=dataset.feature_names,
            feature_layer=experiment.model.feature_layer,
            task=experiment.task,
            training=experiment.training,
            privacy=experiment.privacy,
        )

    def code(self) -> dict[str, str]:
        """What of the task is the user's own code: setting -> ``package.module:name``."""
        named = {
            "model.name": self.model,
            "task.name": self.task.name,
            "training.optimiser": self.training.optimiser,
            "training.augment": self.training.augment or "",
        }
        return {key: name for key, name in named.items() if ":" in name}

    @property
    def form(self) -> InputForm:
        """The form of the samples, for new ones."""
        mean, deviation, names = self.mean, self.deviation, self.feature_names
        return InputForm(self.kind, self.input_shape, mean, deviation, self.pixels, names, self.classes)

    def dataset(self, train: Split, test: Split) -> Dataset:
        """The samples as a data set with this task's kind, classes and normalisation."""
        return Dataset("task", self.kind, train, test, self.classes, self.mean, self.deviation, self.class_names)

    def network(self) -> nn.Module:
        """The network with its initial weights, which follow from the seed."""
        with seeded(seed64(self.seed, "initial weights")):
            return models.build(self.model, self.kind, self.input_shape, self.classes, self.width)

    def build(self, dataset: Dataset, partition: Partition, processor: str = "cpu", repeatable: bool = True) -> Task:
        """The task on the given samples. Its network starts from the initial weights, which follow from the seed.

        ``repeatable`` = False: privacy noise is drawn from the operating system, as on real devices.
        """
        network = self.network()
        layer = self.feature_layer or models.default_feature_layer(self.model, network)
        if self.feature_layer is not None:
            find_layer(network, layer)
        network = network.to(processor).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        learning = find_task(self.task)
        goal = Goal(learning, chosen_metrics(learning, self.task))
        return Task(self, dataset, partition, FlatModel(network), layer, goal, repeatable)


def _check_size(experiment: Experiment, dataset: Dataset, outputs: int) -> None:
    for what, size in [("outputs", outputs), *(("numbers in a row of an input", each) for each in dataset.input_shape)]:
        if not 1 <= size <= LARGEST:
            raise UserError(f"data.dataset = {experiment.data.dataset!r}: {size:,} {what}; accepted: 1 to {LARGEST:,}")


def _pixels(dataset: Dataset) -> Pixels | None:
    if dataset.kind != "image":
        return None
    return "bytes" if dataset.test.x.dtype == torch.uint8 else "floats"
