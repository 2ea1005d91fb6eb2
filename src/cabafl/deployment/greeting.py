"""What a server tells a device when it joins: the network, the local training, which samples are its own."""

import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from cabafl.config import DataSection, Experiment, PrivacySection, TrainingSection
from cabafl.data.dataset import Kind
from cabafl.learning.task import Task
from cabafl.validation import validated

FORMAT = 1
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Greeting(BaseModel):
    """The same for every device; nothing in it speaks of another device."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)] = FORMAT
    seed: Annotated[int, Field(ge=0)]
    model: str
    kind: Kind
    input_shape: Annotated[tuple[Count, ...], Field(min_length=1, max_length=4)]
    classes: Count
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    feature_layer: str | None
    weights: Annotated[int, Field(ge=1)]  # entries of a flat model
    data: DataSection
    training: TrainingSection
    privacy: PrivacySection

    @classmethod
    def of(cls, experiment: Experiment, task: Task, devices: int) -> "Greeting":
        """For a task on the server, whose test samples are of the kind the devices train with."""
        data = task.dataset
        return cls(
            seed=experiment.seed,
            model=experiment.model.name,
            kind=data.kind,
            input_shape=data.input_shape,
            classes=data.classes,
            mean=data.mean,
            deviation=data.deviation,
            feature_layer=task.feature_layer,
            weights=task.model.layout.size,
            data=experiment.data.model_copy(update={"root": None, "devices": devices}),
            training=experiment.training,
            privacy=experiment.privacy,
        )

    @classmethod
    def read(cls, text: str) -> "Greeting":
        """Raises `UserError` or ValueError for anything that is not a greeting."""
        return validated(cls, json.loads(text), "greeting")

    def text(self) -> str:
        """JSON."""
        return self.model_dump_json()
