"""What a server tells a device when it joins: the task, and which samples are its own."""

import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from cabafl.config import DataSection, Experiment
from cabafl.learning.spec import TaskSpec
from cabafl.learning.task import Task
from cabafl.validation import validated

FORMAT = 2


class Greeting(BaseModel):
    """The same for every device; nothing in it is about another device."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Annotated[int, Field(ge=FORMAT, le=FORMAT)] = FORMAT
    task: TaskSpec
    weights: Annotated[int, Field(ge=1)]  # entries of a flat model
    data: DataSection

    @classmethod
    def of(cls, experiment: Experiment, task: Task, devices: int) -> "Greeting":
        """For the server's task, whose test samples have the form of the devices' samples."""
        data = experiment.data.model_copy(update={"root": None, "devices": devices})
        return cls(task=task.spec, weights=task.model.layout.size, data=data)

    @classmethod
    def read(cls, text: str) -> "Greeting":
        """Raises `UserError` or ValueError for anything that is not a greeting."""
        return validated(cls, json.loads(text), "greeting")

    def text(self) -> str:
        """As JSON."""
        return self.model_dump_json()
