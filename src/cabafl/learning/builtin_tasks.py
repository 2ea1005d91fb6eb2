"""The built-in learning tasks, and the task of an experiment."""

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from cabafl.config import TaskSection
from cabafl.errors import UserError
from cabafl.learning.learning_task import LearningTask, Sums, TaskMetric
from cabafl.own_code import blaming, find_own
from cabafl.recording.events import TOTALS
from cabafl.validation import unknown

_RESERVED = (
    "time",
    "version",
    "loss",
    *TOTALS,
    "event",
    "window_mean",
    "window_deviation",
)  # columns, keys
_BEGINNINGS = ("averaged_", "devices_")  # of further columns


class Classification(LearningTask):
    """One of several classes: cross entropy."""

    targets = "class"
    smooths = True

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The cross entropy of each sample."""
        return F.cross_entropy(outputs, y, reduction="none")

    def loss(self, outputs: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """The mean cross entropy."""
        return F.cross_entropy(outputs, y, label_smoothing=label_smoothing)

    def loss_sum(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The sum of the cross entropies."""
        return F.cross_entropy(outputs, y, reduction="sum")

    def metrics(self) -> Sequence[TaskMetric]:
        """Share of correct answers, F1 as the mean over the classes, share of samples whose class is among the best
        five."""
        return (
            TaskMetric("accuracy", lambda outputs, y: (outputs.argmax(dim=1) == y).sum(), percent=True),
            TaskMetric("macro_f1", _class_counts, _macro_f1, percent=True),
            TaskMetric("top5", lambda outputs, y: _among_best(outputs, y, 5), percent=True),
        )

    def usual(self) -> Sequence[str]:
        """Accuracy alone."""
        return ()


class Regression(LearningTask):
    """One or several numbers: mean squared error."""

    targets = "numbers"

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The squared error of each sample, as the mean over its numbers."""
        return _errors(outputs, y).square().mean(dim=1)

    def metrics(self) -> Sequence[TaskMetric]:
        """Mean squared error, mean absolute error, and the share of the variance that is explained."""
        return (
            TaskMetric("mse", lambda o, y: _errors(o.double(), y).square().mean(dim=1).sum(), more_is_better=False),
            TaskMetric("mae", lambda o, y: _errors(o.double(), y).abs().mean(dim=1).sum(), more_is_better=False),
            TaskMetric("r2", _moments, _explained),
        )


class Multilabel(LearningTask):
    """Any number of labels per sample: binary cross entropy, as the mean over the labels."""

    targets = "labels"

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The binary cross entropy of each sample."""
        return F.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none").mean(dim=1)

    def metrics(self) -> Sequence[TaskMetric]:
        """F1 over all decisions, F1 as the mean over the labels, share of correct decisions; a label is predicted if
        its output is above 0."""
        return (
            TaskMetric("micro_f1", lambda o, y: _label_counts(o, y).sum(dim=1), _macro_f1, percent=True),
            TaskMetric("macro_f1", _label_counts, _macro_f1, percent=True),
            TaskMetric("accuracy", lambda o, y: ((o > 0) == (y > 0)).double().mean(dim=1).sum(), percent=True),
        )


class NextToken(LearningTask):
    """The token after a window, or the next one after each step of it: cross entropy.

    Outputs are scores (batch, tokens) for one target per sample, or (batch, steps, tokens) for one per step.
    """

    targets = "tokens"
    smooths = True

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The cross entropy of each sample, as the mean over its steps."""
        losses = F.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none")
        return losses.view(len(y), -1).mean(dim=1)

    def loss(self, outputs: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """The mean cross entropy per token."""
        return F.cross_entropy(outputs.flatten(0, -2), y.flatten(), label_smoothing=label_smoothing)

    def metrics(self) -> Sequence[TaskMetric]:
        """Perplexity, the exponential of the mean cross entropy; share of tokens predicted correctly."""
        return (
            TaskMetric("perplexity", lambda o, y: self.loss_sum(o.double(), y), _perplexity, more_is_better=False),
            TaskMetric(
                "accuracy", lambda o, y: (o.argmax(dim=-1) == y).view(len(y), -1).double().mean(1).sum(), percent=True
            ),
        )


BUILT_IN: dict[str, type[LearningTask]] = {
    "classification": Classification,
    "regression": Regression,
    "multilabel": Multilabel,
    "next-token": NextToken,
}


def find_task(section: TaskSection) -> LearningTask:
    """The learning task of an experiment: a built-in one, or the user's own as ``package.module:Class``."""
    name = section.name
    if name in BUILT_IN:
        return BUILT_IN[name]()
    if ":" not in name:
        raise unknown("task.name", name, [*BUILT_IN, "package.module:Class"])
    cls = find_own("task.name", name)
    if not (isinstance(cls, type) and issubclass(cls, LearningTask)):
        raise UserError(f"task.name = {name!r}: is not a task; accepted: a subclass of cabafl.LearningTask")
    with blaming({"task.name": name}):
        task = cls()
    if task.targets not in _TARGETS:
        raise UserError(f"task.name = {name!r}: targets = {task.targets!r}; accepted: {', '.join(_TARGETS)}")
    return task


_TARGETS = ("class", "numbers", "labels", "tokens")


def chosen_metrics(task: LearningTask, section: TaskSection) -> tuple[TaskMetric, ...]:
    """The metrics of an experiment; the first is the one that its runs are judged by."""
    offered: dict[str, TaskMetric] = {}
    for metric in _offered(task, section.name):
        name = metric.name
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in _RESERVED or name.startswith(_BEGINNINGS):
            raise UserError(
                f"task.name = {section.name!r}: a metric with the name {name!r}; accepted: lower-case letters, digits "
                f"and underscores, but not averaged_..., devices_..., {', '.join(_RESERVED)}"
            )
        if name in offered:
            raise UserError(f"task.name = {section.name!r}: two metrics are called {name!r}; accepted: different names")
        offered[name] = metric
    first = next(iter(offered)) if section.metric is None else section.metric
    with blaming({"task.name": section.name}):
        usual = list(task.usual() if section.metrics is None else section.metrics)
    names = [first, *(name for name in usual if name != first)]
    for key, name in [("task.metric", first), *(("task.metrics", name) for name in names[1:])]:
        if name not in offered:
            raise unknown(key, name, offered)
    return tuple(offered[name] for name in dict.fromkeys(names))


def _offered(task: LearningTask, name: str) -> list[TaskMetric]:
    """The metrics of a task, which may be the user's own."""
    with blaming({"task.name": name}):
        found: object = task.metrics()
    if not isinstance(found, Sequence) or not found or not all(isinstance(each, TaskMetric) for each in found):
        raise UserError(f"task.name = {name!r}: metrics() = {found!r:.80}; accepted: a list of cabafl.TaskMetric")
    return list(found)


# Sums and values of metrics


def _among_best(outputs: Tensor, y: Tensor, most: int) -> Tensor:
    best = outputs.topk(min(most, outputs.shape[1]), dim=1).indices
    return (best == y[:, None]).any(dim=1).sum()


def _class_counts(outputs: Tensor, y: Tensor) -> Tensor:
    """Per class: correct answers, answers, samples."""
    answers, classes = outputs.argmax(dim=1), outputs.shape[1]
    each = (answers[answers == y], answers, y)
    return torch.stack([torch.bincount(which, minlength=classes) for which in each])


def _label_counts(outputs: Tensor, y: Tensor) -> Tensor:
    """Per label: correct predictions of it, predictions of it, samples with it."""
    predicted, true = outputs > 0, y > 0
    return torch.stack([(predicted & true).sum(dim=0), predicted.sum(dim=0), true.sum(dim=0)])


def _macro_f1(sums: Sums, _samples: int) -> float:
    """The mean of F1 over the classes that occur or are predicted; 0 if none."""
    count = len(sums) // 3
    scores = [
        2 * correct / (found + real)
        for correct, found, real in zip(sums[:count], sums[count : 2 * count], sums[2 * count :], strict=True)
        if found + real
    ]
    return sum(scores) / len(scores) if scores else 0.0


def _errors(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs.view(len(y), -1) - y.view(len(y), -1)


def _moments(outputs: Tensor, y: Tensor) -> Tensor:
    """Per number: the sums of the squared errors, of the targets and of their squares."""
    target = y.view(len(y), -1).double()
    return torch.stack(
        [_errors(outputs.double(), y).square().sum(dim=0), target.sum(dim=0), target.square().sum(dim=0)]
    )


def _explained(sums: Sums, samples: int) -> float:
    """1 - squared error / variance, as the mean over the numbers; 0 for a number that is always the same."""
    count = len(sums) // 3
    shares = []
    for squared, total, squares in zip(sums[:count], sums[count : 2 * count], sums[2 * count :], strict=True):
        variance = squares - total * total / samples
        shares.append(1 - squared / variance if variance > 0 else 0.0)
    return sum(shares) / count


def _perplexity(sums: Sums, samples: int) -> float:
    """Infinite if it is larger than a float can be."""
    mean = sums[0] / samples
    return math.exp(mean) if mean < 700 else math.inf
