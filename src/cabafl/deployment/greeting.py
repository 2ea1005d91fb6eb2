"""What the server sends to a device that joins: the task, and which data set and partition to use."""

import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from cabafl.config import DataSection, Experiment
from cabafl.learning.spec import TaskSpec
from cabafl.learning.task import Task
from cabafl.validation import validated

FORMAT = 5


class Greeting(BaseModel):
    """The same for every device; it contains nothing about other devices."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)] = FORMAT
    task: TaskSpec
    weights: Annotated[int, Field(ge=1)]  # length of a flat model
    data: DataSection

    @classmethod
    def of(cls, experiment: Experiment, task: Task, devices: int) -> "Greeting":
        """Made from the server's task. ``data.root`` is left out: each device has its own."""
        data = experiment.data.model_copy(update={"root": None, "devices": devices})
        return cls(task=task.spec, weights=task.model.layout.size, data=data)

    @classmethod
    def read(cls, text: str) -> "Greeting":
        """Parses JSON; raises `UserError` or ValueError if it is not a greeting."""
        return validated(cls, json.loads(text), "greeting")

    def text(self) -> str:
        """The greeting as JSON."""
        return self.model_dump_json()
