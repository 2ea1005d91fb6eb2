"""What a network learns: the loss, the size of its output, and the metrics. Built-in tasks are in `builtin_tasks`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cabafl.names import TargetKind
from cabafl.recording.scale import MetricInfo

Sums = Sequence[float]


def mean_of(sums: Sums, samples: int) -> float:
    """The mean over the samples of a metric that has one sum."""
    return sums[0] / samples


@dataclass(frozen=True)
class TaskMetric:
    """A metric computed from sums over samples, so that test samples can be evaluated in parts."""

    name: str
    """The column in ``metrics.csv``: lower-case letters, digits and underscores."""

    sums: Callable[[Tensor, Tensor], Tensor]
    """Outputs and targets of a batch -> one or several sums over its samples."""

    value: Callable[[Sums, int], float] = mean_of
    """The sums over all samples, and the number of samples -> the metric; by default the mean."""

    more_is_better: bool = True
    """False: the lower the better, as for errors."""

    percent: bool = False
    """Whether a value from 0 to 1 is shown in percent."""

    @property
    def info(self) -> MetricInfo:
        """What reports know about it."""
        return MetricInfo(self.name, self.more_is_better, self.percent)


class LearningTask:
    """Base class of learning tasks: what the network learns, and how well it does is measured.

    A subclass sets `targets`, implements `losses` and `metrics`, and may override the rest.
    """

    targets: ClassVar[TargetKind] = "numbers"
    """What the network is to predict for a sample: ``class`` (one of several, int64), ``numbers`` (float32, one or
    several), ``labels`` (0 or 1 for each of several) or ``tokens`` (int64, one or one per step)."""

    smooths: ClassVar[bool] = False
    """Whether `loss` takes ``label_smoothing``, for ``training.label_smoothing``."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample of a batch, shape (batch,)."""
        raise NotImplementedError

    def metrics(self) -> Sequence[TaskMetric]:
        """All metrics that the task offers; the first is the one that runs are judged by."""
        raise NotImplementedError

    def usual(self) -> Sequence[str]:
        """The names of the metrics that are recorded beside the first, unless ``task.metrics`` names others."""
        return [metric.name for metric in self.metrics()][1:]

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch, which training minimises."""
        return self.losses(outputs, y).mean()

    def loss_sum(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The sum of the losses of a batch; ``outputs`` are float64, for evaluations."""
        return self.losses(outputs, y).sum()

    def outputs(self, classes: int, y: Tensor) -> int:
        """Number of outputs of the network, for data with so many ``classes`` and such targets."""
        return classes if self.targets in ("class", "tokens") else y[0].numel()

    def check(self, y: Tensor) -> None:
        """Raises ValueError if the network cannot learn such targets; the text says what is accepted."""
        found = f"{str(y.dtype).removeprefix('torch.')} of shape {tuple(y.shape)}"
        dimensions, floating = {
            "class": ((1,), (False,)),
            "numbers": ((1, 2), (True,)),
            "labels": ((2,), (True, False)),
            "tokens": ((1, 2), (False,)),
        }[self.targets]
        if y.dim() not in dimensions or y.is_floating_point() not in floating:
            raise ValueError(f"the targets of the data are {found}; accepted: {_ACCEPTED[self.targets]}")
        if self.targets == "labels" and not bool(((y == 0) | (y == 1)).all()):
            raise ValueError(f"the targets of the data have other values than 0 and 1; accepted: {_ACCEPTED['labels']}")


_ACCEPTED: dict[TargetKind, str] = {
    "class": "class numbers, one per sample",
    "numbers": "floating-point numbers, one or several per sample",
    "labels": "a row of 0 and 1 per sample",
    "tokens": "symbol numbers, one per sample or one per step",
}
