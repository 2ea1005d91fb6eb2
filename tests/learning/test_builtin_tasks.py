"""Losses and metrics of the built-in tasks, compared with other computations; tasks that cannot be used."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from cabafl.config import TaskSection
from cabafl.errors import UserError
from cabafl.learning.builtin_tasks import (
    BUILT_IN,
    Classification,
    Multilabel,
    NextToken,
    Regression,
    chosen_metrics,
    find_task,
)
from cabafl.learning.evaluation import evaluate, figures, total
from cabafl.learning.learning_task import LearningTask, TaskMetric

GENERATOR = torch.Generator().manual_seed(4)


def found(task: LearningTask, outputs: Tensor, y: Tensor, parts: int = 3) -> dict[str, float]:
    """All metrics of a task, evaluated in parts that are added."""
    size = -(-len(y) // parts)
    chunks = zip(torch.split(outputs, size), torch.split(y, size), strict=True)
    scores = [evaluate(nn.Identity(), x, part, task, task.metrics(), batch=7) for x, part in chunks]
    return figures(total(scores), task.metrics())


def f1(answers: Tensor, y: Tensor) -> float:
    """F1 of yes-or-no answers, from precision and recall."""
    right = float((answers & y).sum())
    if right == 0:
        return 0.0
    precision, recall = right / float(answers.sum()), right / float(y.sum())
    return 2 * precision * recall / (precision + recall)


def test_classification() -> None:
    outputs, y = torch.randn(50, 8, generator=GENERATOR), torch.randint(7, (50,), generator=GENERATOR)
    values = found(Classification(), outputs, y)
    answers = outputs.argmax(1)
    assert list(values) == ["accuracy", "loss", "macro_f1", "top5"]
    assert values["accuracy"] == int((answers == y).sum()) / 50
    assert values["loss"] == pytest.approx(float(F.cross_entropy(outputs, y)))
    occurring = [c for c in range(8) if (y == c).any() or (answers == c).any()]
    assert values["macro_f1"] == pytest.approx(np.mean([f1(answers == c, y == c) for c in occurring]))
    better = [(row > row[label]).sum() for row, label in zip(outputs, y, strict=True)]
    assert values["top5"] == np.mean([int(number) < 5 for number in better])


def test_top5_of_fewer_classes_is_always_right() -> None:
    assert found(Classification(), torch.randn(9, 3), torch.zeros(9, dtype=torch.int64))["top5"] == 1.0


@pytest.mark.parametrize("shape", [(40,), (40, 3)])
def test_regression(shape: tuple[int, ...]) -> None:
    outputs, y = torch.randn(40, *shape[1:] or (1,), generator=GENERATOR), torch.randn(shape, generator=GENERATOR)
    values = found(Regression(), outputs, y)
    target, answer = y.view(40, -1).double(), outputs.double()
    assert list(values) == ["mse", "loss", "mae", "r2"]
    assert values["mse"] == values["loss"] == pytest.approx(float((target - answer).square().mean()))
    assert values["mae"] == pytest.approx(float((target - answer).abs().mean()))
    explained = 1 - (target - answer).square().mean(0) / target.var(0, correction=0)
    assert values["r2"] == pytest.approx(float(explained.mean()))


def test_nothing_is_explained_where_nothing_varies() -> None:
    assert found(Regression(), torch.zeros(6, 1), torch.ones(6))["r2"] == 0.0


def test_multilabel() -> None:
    outputs = torch.randn(60, 4, generator=GENERATOR)
    y = (torch.randn(60, 4, generator=GENERATOR) > 0.3).float()
    values, answers = found(Multilabel(), outputs, y), outputs > 0
    assert list(values) == ["micro_f1", "loss", "macro_f1", "accuracy"]
    assert values["micro_f1"] == pytest.approx(f1(answers, y > 0))
    assert values["macro_f1"] == pytest.approx(np.mean([f1(answers[:, i], y[:, i] > 0) for i in range(4)]))
    assert values["accuracy"] == pytest.approx(float((answers == (y > 0)).float().mean()))
    assert values["loss"] == pytest.approx(float(F.binary_cross_entropy_with_logits(outputs, y)))


def test_labels_that_never_occur_and_are_never_predicted_do_not_count() -> None:
    y = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert found(Multilabel(), torch.tensor([[1.0, -1.0], [1.0, -1.0]]), y, 1)["macro_f1"] == 1.0
    assert found(Multilabel(), -torch.ones(2, 2), torch.zeros(2, 2), 1)["micro_f1"] == 0.0


@pytest.mark.parametrize("steps", [(), (5,)])
def test_next_token(steps: tuple[int, ...]) -> None:
    outputs = torch.randn(30, *steps, 9, generator=GENERATOR)
    y = torch.randint(9, (30, *steps), generator=GENERATOR)
    values = found(NextToken(), outputs, y)
    loss = float(F.cross_entropy(outputs.reshape(-1, 9), y.flatten()))
    assert list(values) == ["perplexity", "loss", "accuracy"]
    assert values["loss"] == pytest.approx(loss)
    assert values["perplexity"] == pytest.approx(np.exp(loss))
    assert values["accuracy"] == pytest.approx(float((outputs.argmax(-1) == y).float().mean()))
    assert float(NextToken().loss(outputs, y)) == pytest.approx(loss)


def test_a_perplexity_beyond_all_numbers_is_infinite() -> None:
    assert found(NextToken(), torch.tensor([[1e4, 0.0]]), torch.tensor([1]), 1)["perplexity"] == float("inf")


@pytest.mark.parametrize("task", [cls() for cls in BUILT_IN.values()], ids=BUILT_IN)
def test_the_loss_is_the_mean_of_the_losses(task: LearningTask) -> None:
    outputs = torch.randn(12, 4, generator=GENERATOR)
    targets: dict[str, Tensor] = {
        "class": torch.arange(12) % 4,
        "tokens": torch.arange(12) % 4,
        "numbers": torch.randn(12, 4, generator=GENERATOR),
        "labels": (outputs > 0.5).float(),
    }
    y = targets[task.targets]
    losses = task.losses(outputs, y)
    assert losses.shape == (12,)
    torch.testing.assert_close(task.loss(outputs, y), losses.mean())
    torch.testing.assert_close(task.loss_sum(outputs, y), losses.sum())


def test_smoothed_labels() -> None:
    outputs, y = torch.randn(6, 4, generator=GENERATOR), torch.arange(6) % 4
    expected = F.cross_entropy(outputs, y, label_smoothing=0.2)
    torch.testing.assert_close(Classification().loss(outputs, y, label_smoothing=0.2), expected)
    torch.testing.assert_close(NextToken().loss(outputs, y, label_smoothing=0.2), expected)


# Which metrics are recorded


def names(**keys: Any) -> list[str]:
    section = TaskSection(**keys)
    return [metric.name for metric in chosen_metrics(find_task(section), section)]


def test_the_metrics_of_an_experiment() -> None:
    assert names() == ["accuracy"]
    assert names(metrics=["top5", "top5", "accuracy"]) == ["accuracy", "top5"]
    assert names(metric="macro_f1") == ["macro_f1"]
    assert names(name="regression") == ["mse", "mae", "r2"]
    assert names(name="regression", metric="r2") == ["r2", "mae"]
    assert names(name="regression", metrics=[]) == ["mse"]
    assert names(name="multilabel", metrics="accuracy, macro_f1") == ["micro_f1", "accuracy", "macro_f1"]


# Mistakes


class Nameless(LearningTask):
    targets = "numbers"

    def metrics(self) -> Sequence[TaskMetric]:
        return [TaskMetric("Mean Error", lambda outputs, y: outputs.sum())]


class Named(LearningTask):
    """With metrics of given names."""

    names: Sequence[str] = ()

    def metrics(self) -> Sequence[TaskMetric]:
        return [TaskMetric(name, lambda outputs, y: outputs.sum()) for name in self.names]


@pytest.mark.parametrize(
    "name", ["loss", "time", "uploads", "bytes", "joules", "event", "window_mean", "averaged_x", "devices_mean"]
)
def test_metrics_do_not_have_the_names_of_other_columns(name: str) -> None:
    task = Named()
    task.names = [name]
    with pytest.raises(UserError, match=rf"^task.name = 'classification': a metric with the name '{name}'; accepted: "):
        chosen_metrics(task, TaskSection())


def test_two_metrics_with_one_name() -> None:
    task = Named()
    task.names = ["error", "error"]
    with pytest.raises(UserError, match="two metrics are called 'error'; accepted: different names"):
        chosen_metrics(task, TaskSection())


class Lost(LearningTask):
    targets = "pictures"  # type: ignore[assignment]


HERE = "tests.learning.test_builtin_tasks"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"name": "regresion"},
            "'regresion': unknown, did you mean 'regression'.; accepted: classification",
        ),
        ({"name": "no_such_module:Task"}, "task.name = 'no_such_module:Task': cannot be imported"),
        ({"name": "math:pi"}, "task.name = 'math:pi': is not a task; accepted: a subclass of cabafl.LearningTask"),
        ({"name": f"{HERE}:Nameless"}, "a metric with the name 'Mean Error'; accepted: lower-case letters"),
        ({"name": f"{HERE}:Lost"}, "targets = 'pictures'; accepted: class, numbers, labels, tokens"),
        ({"metrics": ["mse"]}, "task.metrics = 'mse': unknown; accepted: accuracy, macro_f1, top5"),
        ({"metric": "f1"}, "task.metric = 'f1': unknown.*; accepted: accuracy, macro_f1, top5"),
    ],
)
def test_tasks_that_cannot_be_used(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        names(**keys)


def test_targets_that_a_task_learns() -> None:
    Multilabel().check(torch.tensor([[0, 1], [1, 1]]))
    Multilabel().check(torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
    NextToken().check(torch.zeros(3, 2, dtype=torch.int64))
    Regression().check(torch.zeros(3, 2))


@pytest.mark.parametrize(
    ("task", "y", "message"),
    [
        ("classification", torch.zeros(3), "float32 of shape \\(3,\\); accepted: class numbers, one per sample"),
        ("regression", torch.zeros(3, dtype=torch.int64), "int64 of shape .* accepted: floating-point numbers"),
        ("multilabel", torch.zeros(3), "accepted: a row of 0 and 1 per sample"),
        ("multilabel", torch.full((3, 2), 0.5), "other values than 0 and 1"),
        ("next-token", torch.zeros(3, 2), "accepted: symbol numbers"),
    ],
)
def test_targets_that_a_task_cannot_learn(task: str, y: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BUILT_IN[task]().check(y)
