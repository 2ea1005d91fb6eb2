"""DP-SGD: gradients against a loop over single samples, noise, and epsilon."""

import math
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from cabafl.assembly import assemble
from cabafl.config import load_experiment
from cabafl.errors import UserError
from cabafl.learning.dp import DpSgd, drawn, epsilon, make_private, per_sample_gradients
from cabafl.lifecycle.simulate import simulate
from cabafl.models import build

# Not imported to find out: that takes seconds, also where none of these tests runs.
pytestmark = pytest.mark.skipif(find_spec("opacus") is None, reason="Opacus is not installed (extra `dp`)")
SETTINGS = [
    "data.train_limit=400",
    "data.test_limit=100",
    "data.devices=10",
    "model.name=mlp",
    "training.epochs=1",
    "training.batch_size=20",
    "training.learning_rate=0.1",
    "fleet.slots=5",
    "run.virtual_time=100",
    "run.evaluate_every=50",
    "method.name=fedavg",
    "privacy.dp_clip=1.0",
    "privacy.dp_noise=0.8",
]


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_gradient_is_that_of_a_loop_over_samples(name: str) -> None:
    torch.manual_seed(1)
    network = build(name, "image", (3, 32, 32), 10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, y = torch.randn(7, 3, 32, 32).to(memory_format=torch.channels_last), torch.arange(7)
    parameters = list(network.parameters())
    expected = [torch.zeros_like(p) for p in parameters]
    for i in range(7):
        network.zero_grad()
        F.cross_entropy(network(x[i : i + 1]), y[i : i + 1]).backward()  # type: ignore[no-untyped-call]
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in parameters if p.grad is not None))
        for total, p in zip(expected, parameters, strict=True):
            assert p.grad is not None
            total += p.grad * min(1.0, 0.5 / norm) / 10
    network.zero_grad()
    with per_sample_gradients(network):
        F.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
        make_private(parameters, DpSgd(0.5, 1e-12), 10, torch.Generator().manual_seed(1))
    for total, p in zip(expected, parameters, strict=True):
        torch.testing.assert_close(p.grad, total, rtol=1e-4, atol=1e-7)
    assert not any(hasattr(p, "grad_sample") for p in parameters), "nothing is left behind"
    assert not any(module._forward_hooks or module._backward_hooks for module in network.modules())


def test_noise_has_the_configured_deviation() -> None:
    layer = nn.Linear(200, 200)
    make_private(list(layer.parameters()), DpSgd(2.0, 1.5), 10, torch.Generator().manual_seed(1))
    assert layer.weight.grad is not None
    assert float(layer.weight.grad.std()) == pytest.approx(2.0 * 1.5 / 10, rel=0.02)


def test_samples_are_taken_independently() -> None:
    generator = torch.Generator().manual_seed(1)
    sizes = torch.tensor([float(len(drawn(500, 50, generator))) for _ in range(400)])
    assert float(sizes.mean()) == pytest.approx(50, rel=0.03)
    assert float(sizes.std()) == pytest.approx(math.sqrt(500 * 0.1 * 0.9), rel=0.15)
    assert len(drawn(20, 50, generator)) == 20


def test_epsilon_is_at_most_that_of_the_plain_gaussian_mechanism() -> None:
    """Without subsampling the Renyi divergence of T steps is T a / (2 z^2), in closed form."""
    noise, steps, delta = 4.0, 10, 1e-5
    orders = [1 + i / 10 for i in range(1, 1000)]
    bound = min(steps * a / (2 * noise**2) + math.log(1 / delta) / (a - 1) for a in orders)
    spent = epsilon(DpSgd(1.0, noise), 50, 50, steps, delta)
    assert 0.7 * bound < spent <= bound
    assert epsilon(DpSgd(1.0, noise), 500, 50, steps, delta) < spent / 3, "a random share gives less away"
    assert epsilon(DpSgd(1.0, noise), 50, 50, 0, delta) == 0.0


def test_a_run_repeats_and_reports_its_epsilon(tmp_path: Path) -> None:
    inline = simulate(load_experiment(None, [*SETTINGS, "run.workers=0"]), tmp_path / "a")
    worker = simulate(load_experiment(None, [*SETTINGS, "run.workers=1"]), tmp_path / "b")
    assert inline.summary["epsilon"] == worker.summary["epsilon"] > 0
    names = ("events.jsonl", "metrics.csv", "model.safetensors")
    assert [(tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names] == [True] * 3
    assert inline.summary["final_accuracy"] > 0.3, "it learns"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["privacy.dp_noise=0"], "needs privacy.dp_clip; accepted: both above 0, or neither"),
        (["privacy.dp_clip=none"], "needs privacy.dp_clip; accepted: both above 0, or neither"),
        (["model.name=resnet18"], "layers that mix the samples of a batch"),
        (["method.name=wkafl", "method.stage_rule=loss"], "devices then report no training loss"),
    ],
)
def test_settings_that_dp_sgd_does_not_support(settings: list[str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        assemble(load_experiment(None, [*SETTINGS, *settings]))
