"""Loss and metrics on test samples."""

from collections.abc import Sequence
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cabafl.errors import UserError
from cabafl.learning.learning_task import LearningTask, TaskMetric

BATCH = 500


class Score(NamedTuple):
    """Sums over samples, so that the scores of chunks can be added."""

    sums: tuple[tuple[float, ...], ...]  # of each metric
    loss: float
    samples: int


def evaluate(
    network: nn.Module, x: Tensor, y: Tensor, task: LearningTask, metrics: Sequence[TaskMetric], batch: int = BATCH
) -> Score:
    """Adds up the loss and what the metrics need, batch by batch in a fixed order."""
    network.eval()
    loss, parts = 0.0, []
    with torch.inference_mode():
        for inputs, targets in zip(torch.split(x, batch), torch.split(y, batch), strict=True):
            outputs = network(inputs)
            parts.append([_one(metric.sums(outputs, targets), metric.name).double().flatten() for metric in metrics])
            loss += float(_one(task.loss_sum(outputs.double(), targets), "loss").sum())
    sums = tuple(tuple(torch.stack(each).sum(dim=0).tolist()) for each in zip(*parts, strict=True))
    return Score(sums, loss, len(y))


def total(parts: Sequence[Score]) -> Score:
    """The score of all samples of ``parts``, added in their order; there must be at least one part."""
    sums = tuple(tuple(map(sum, zip(*each, strict=True))) for each in zip(*(part.sums for part in parts), strict=True))
    return Score(sums, sum(part.loss for part in parts), sum(part.samples for part in parts))


def _one(found: object, what: str) -> Tensor:
    """What a task of the user's gives must be a tensor."""
    if isinstance(found, Tensor):
        return found
    raise UserError(f"task.name: the sums of {what!r} are a {type(found).__name__}; accepted: a tensor")


def figures(score: Score, metrics: Sequence[TaskMetric]) -> dict[str, float]:
    """The metrics by name, the first first, then the mean loss under ``loss``, then the others."""
    values = [
        (metric.name, _number(metric.value(sums, score.samples), metric.name))
        for metric, sums in zip(metrics, score.sums, strict=True)
    ]
    return dict([values[0], ("loss", score.loss / score.samples), *values[1:]])


def _number(found: object, what: str) -> float:
    if isinstance(found, Tensor) and found.numel() == 1:
        found = found.item()
    if isinstance(found, Real):
        return float(found)
    raise UserError(f"task.name: the value of {what!r} is {found!r:.80}; accepted: a number")
