"""The description of a task: any process builds the same task from it."""

import json

import numpy as np
import pytest

from cabafl.assembly import assemble
from cabafl.config import load_experiment
from cabafl.errors import UserError
from cabafl.execution.task_arrays import arrays_of, build_task
from cabafl.learning.spec import TaskSpec
from cabafl.methods.base import Objective

SETTINGS = [
    "data.train_limit=300",
    "data.test_limit=50",
    "data.devices=5",
    "data.min_samples=1",
    "training.momentum=0.3",
    "privacy.feature_clip=2.0",
    "privacy.feature_noise=0.1",
]


@pytest.mark.parametrize("model", [["cnn"], ["mlp"], ["resnet18", "model.width=0.03"]], ids=lambda model: model[0])
def test_a_task_built_elsewhere_gives_the_same_bits(model: list[str]) -> None:
    name, *more = model
    task = assemble(load_experiment(None, [*SETTINGS, f"model.name={name}", *more])).task
    spec = TaskSpec(**json.loads(task.spec.model_dump_json()))
    other = build_task(spec, "cpu", arrays_of(task))
    assert spec == task.spec
    weights = task.model.save()
    np.testing.assert_array_equal(other.model.save(), weights)
    how = Objective(epochs=1, lr_scale=0.5, prox=0.1, report_loss=True)
    mine, theirs = task.train(3, 1, weights, how), other.train(3, 1, weights, how)
    np.testing.assert_array_equal(mine.weights, theirs.weights)
    assert mine.loss == theirs.loss
    rows = [each.features(weights, "activations", range(5)) for each in (task, other)]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert task.evaluate(weights, 0) == other.evaluate(weights, 0)
    assert (task.feature_layer, task.dp) == (other.feature_layer, other.dp)


def test_an_unknown_feature_layer_is_refused_when_building() -> None:
    with pytest.raises(UserError, match=r"model\.feature_layer = 'nowhere'"):
        assemble(load_experiment(None, [*SETTINGS, "model.feature_layer=nowhere"]))


def test_a_width_that_the_network_does_not_have_is_refused_when_building() -> None:
    with pytest.raises(UserError, match=r"^model\.width = 0\.25: model\.name = 'cnn' has no width; accepted: 1\.0, or"):
        assemble(load_experiment(None, [*SETTINGS, "model.width=0.25"]))
