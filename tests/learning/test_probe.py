"""Networks that do not fit are refused in one line before anything runs."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cabafl.assembly import assemble
from cabafl.config import load_experiment
from cabafl.errors import UserError
from cabafl.learning.builtin_tasks import Classification
from cabafl.learning.spec import TaskSpec
from cabafl.samples import make_data

BASE = ["data.dataset=synthetic", "data.devices=10"]  # 32 numbers, 10 classes
WRONG = [
    ("Unbuildable", r"cannot be built with the arguments \(\(32,\), 10\): TypeError: empty\(\): argument 'size'"),
    ("TooFew", r"returns shape \(2, 9\) for a batch of shape \(2, 32\) and type float32; accepted: \(2, 10\), because"),
    ("TooMany", r"returns shape \(2, 11\) .*; accepted: \(2, 10\), because data.dataset has 10 classes"),
    ("Tuple", r"returns a tuple for a batch of shape \(2, 32\) and type float32; accepted: a tensor"),
    ("WrongType", r"returns int64 numbers; accepted: floating-point numbers"),
    ("WrongArguments", r"fails with a batch of shape \(2, 32\) and type float32: TypeError: "),
    ("WrongWidth", r"fails with a batch of shape \(2, 32\) and type float32: RuntimeError: mat1 and mat2 shapes"),
    ("Constant", r"cannot be trained for task.name = 'classification': RuntimeError"),
    ("Summed", r"returns shape \(10,\) for"),
]


class Layer(nn.Module):
    def __init__(self, *, outputs: int = 10, inputs: int = 32) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)
        self.norm = nn.BatchNorm1d(outputs)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.dropout(self.norm(self.layer(x)))
        return scores


class Unbuildable(Layer):
    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(inputs=input_shape)  # type: ignore[arg-type]


class TooFew(Layer):
    def __init__(self) -> None:
        super().__init__(outputs=9)


class TooMany(Layer):
    def __init__(self) -> None:
        super().__init__(outputs=11)


class WrongWidth(Layer):
    def __init__(self) -> None:
        super().__init__(inputs=31)


class Tuple(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x), x  # type: ignore[return-value]


class WrongType(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).long()


class WrongArguments(Layer):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) * mask


class Constant(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class Summed(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum(dim=0)


@pytest.mark.parametrize(("name", "message"), WRONG)
def test_a_network_that_does_not_fit_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"^model.name = '{__name__}:{name}': {message}") as refused:
        assemble(load_experiment(None, [*BASE, f"model.name={__name__}:{name}", "method.features=labels"]))
    assert "\n" not in str(refused.value)


class MeanLoss(Classification):
    """As if it were `loss`."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return super().losses(outputs, y).mean()


class NoTensor(Classification):
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return 1.0  # type: ignore[return-value]


class PerOutput(Classification):
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs.square()


@pytest.mark.parametrize(
    ("name", "found"), [("MeanLoss", r"shape \(\)"), ("NoTensor", "a float"), ("PerOutput", r"shape \(2, 10\)")]
)
def test_a_task_returns_one_loss_per_sample(name: str, found: str) -> None:
    words = [*BASE, "model.name=mlp", "method.name=fedavg", f"task.name={__name__}:{name}"]
    says = rf"^task.name = '{__name__}:{name}': losses returns {found} for 2 samples; accepted: a tensor of shape"
    with pytest.raises(UserError, match=says):
        assemble(load_experiment(None, words))


def test_the_trial_leaves_weights_statistics_and_random_numbers_alone() -> None:
    experiment = load_experiment(None, [*BASE, f"model.name={__name__}:Layer", "method.name=fedavg"])
    dataset, partition = make_data(experiment)
    untried = TaskSpec.of(experiment, dataset).build(dataset, partition)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    tried = assemble(experiment).task
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(tried.model.save(), untried.model.save())
    assert all(parameter.grad is None for parameter in tried.model.network.parameters())


def test_a_sample_alone_is_enough() -> None:
    """Two samples for batch normalisation, even if the test part has one."""
    assemble(load_experiment(None, [*BASE, "data.test_limit=1", f"model.name={__name__}:Layer", "method.name=fedavg"]))
