"""What a device learns and how it trains: the sections ``[task]`` and ``[training]``."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from cabafl.config.sections import Section
from cabafl.validation import nearest
from cabafl.values import Betas, Options

OPTIMISERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "cosine", "step")
AUGMENTATIONS = ("crop", "flip", "crop-flip")


class TaskSection(Section):
    """What the network learns, and the metric that runs are judged by."""

    name: str = Field(
        "classification",
        description="classification | regression | multilabel | next-token | my_package.my_module:MyTask",
    )
    metric: str | None = Field(None, description="metric that runs are judged by; default: the first of the task")
    metrics: list[str] | None = Field(None, description="metrics recorded beside it; default: the task's usual ones")

    @field_validator("metrics", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """On the command line, ``task.metrics=macro_f1,top5`` is easier to write than a list in TOML."""
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


class TrainingSection(Section):
    """Local training on a device; the same for every method."""

    epochs: int = Field(5, ge=1, description="passes over the device's samples per job")
    max_steps: int | None = Field(None, ge=1, description="end a job after this many steps, if its epochs have more")
    batch_size: int = Field(50, ge=1, description="samples per step; the last batch of an epoch may be smaller")
    optimiser: str = Field("sgd", description="sgd | adam | adamw | my_module:MyOptimiser; starts afresh in every job")
    learning_rate: float = Field(0.01, gt=0, allow_inf_nan=False, description="learning rate")
    momentum: float = Field(0.5, ge=0, lt=1, description="SGD momentum; starts from zero in every job")
    nesterov: bool = Field(False, description="sgd: Nesterov momentum")
    betas: Betas = Field([0.9, 0.999], description="adam, adamw: decay of the means of gradients and their squares")
    eps: float = Field(1e-8, gt=0, allow_inf_nan=False, description="adam, adamw: added to the root of the squares")
    options: Options = Field(default_factory=dict, description="arguments of my_module:MyOptimiser, e.g. { rho = 0.9 }")
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False, description="L2 penalty on the parameters")
    clip_norm: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="scale the gradient of a step down to this norm"
    )
    schedule: str = Field(
        "constant", description="learning rate over the run: constant | cosine | step | my_module:my_function"
    )
    schedule_over: Literal["time", "versions"] = Field(
        "time", description="what the schedule follows: time (seconds of the run) | versions (models published)"
    )
    schedule_length: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="cosine: where it ends; step: length of a step; default for cosine over time: the run",
    )
    schedule_factor: float = Field(0.1, gt=0, lt=1, description="step: factor on the learning rate at each step")
    schedule_floor: float = Field(0.01, gt=0, lt=1, description="cosine: factor on the learning rate at its end")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of the target that goes to all classes alike")
    augment: str | None = Field(
        None, description="random changes of training images: crop | flip | crop-flip | my_module:my_function"
    )

    @model_validator(mode="after")
    def _known(self) -> "TrainingSection":
        for key, names in (("optimiser", OPTIMISERS), ("schedule", SCHEDULES), ("augment", AUGMENTATIONS)):
            value = getattr(self, key)
            if value is not None and value not in names and ":" not in value:
                accepted = ", ".join([*names, "package.module:name"])
                raise ValueError(f"training.{key} = {value!r}: unknown{nearest(value, names)}; accepted: {accepted}")
        return self

    @model_validator(mode="after")
    def _fits(self) -> "TrainingSection":
        """Keys of another optimiser or schedule would have no effect."""
        adam, own = self.optimiser in ("adam", "adamw"), ":" in self.optimiser
        if self.nesterov and (self.optimiser != "sgd" or not self.momentum):
            raise ValueError("training.nesterov = true: accepted: with training.optimiser = sgd and a momentum above 0")
        for key, suits, needed in (
            ("momentum", self.optimiser == "sgd" or not self.momentum, "training.optimiser = sgd"),
            ("betas", adam, "training.optimiser = adam or adamw"),
            ("eps", adam, "training.optimiser = adam or adamw"),
            ("options", own, "training.optimiser = package.module:Class"),
            ("schedule_over", self.schedule != "constant", "another training.schedule than constant"),
            ("schedule_length", self.schedule in ("cosine", "step"), "training.schedule = cosine or step"),
            ("schedule_factor", self.schedule == "step", "training.schedule = step"),
            ("schedule_floor", self.schedule == "cosine", "training.schedule = cosine"),
        ):
            field = type(self).model_fields[key]
            if not suits and getattr(self, key) != field.get_default(call_default_factory=True):
                raise ValueError(f"training.{key} = {getattr(self, key)!r}: has no effect; accepted: with {needed}")
        return self
