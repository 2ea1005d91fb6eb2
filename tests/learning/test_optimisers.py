"""Optimisers, clipping, schedules of one job: compared with torch's own."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from cabafl.config import TrainingSection
from cabafl.learning import training
from cabafl.learning.task import FlatModel
from cabafl.learning.training import LocalTraining, batches, train
from cabafl.methods.base import Objective
from cabafl.rng import seed64

SAMPLES, EPOCHS, SIZE = 23, 3, 5


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(8)
    return torch.randn(SAMPLES, 4, generator=generator), torch.randint(0, 3, (SAMPLES,), generator=generator)


def trained(start: FlatModel, objective: Objective | None = None, **keys: Any) -> "np.ndarray[Any, Any]":
    """The weights after a job that starts from those of ``start``."""
    model = FlatModel(network())
    model.load(start.save())
    section = TrainingSection(epochs=EPOCHS, batch_size=SIZE, **keys)
    train(model.network, *samples(), LocalTraining(section, objective or Objective()), seed=11)
    return model.save()


def expected(start: FlatModel, make: Any, clip: float | None = None, steps: int = 99) -> "np.ndarray[Any, Any]":
    """The same steps with an optimiser of torch."""
    model, (x, y) = FlatModel(network()), samples()
    model.load(start.save())
    optimiser = make(model.network.parameters())
    order = [batch for epoch in range(EPOCHS) for batch in batches(SAMPLES, SIZE, seed64(11, "shuffle", epoch))]
    for batch in order[:steps]:
        optimiser.zero_grad()
        F.cross_entropy(model.network(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            nn.utils.clip_grad_norm_(model.network.parameters(), clip)
        optimiser.step()
    return model.save()


@pytest.mark.parametrize(
    ("keys", "make"),
    [
        ({"optimiser": "adam", "betas": [0.8, 0.9], "eps": 1e-6}, lambda p: torch.optim.Adam(p, 0.1, (0.8, 0.9), 1e-6)),
        ({"optimiser": "adam", "weight_decay": 0.1}, lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.1)),
        ({"optimiser": "adamw", "weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1)),
        ({"nesterov": True}, lambda p: torch.optim.SGD(p, 0.1, momentum=0.5, nesterov=True)),
        (
            {"optimiser": "torch.optim:RMSprop", "options": {"alpha": 0.5}},
            lambda p: torch.optim.RMSprop(p, 0.1, alpha=0.5),
        ),
        ({"optimiser": "torch.optim:Adagrad", "weight_decay": 0.2}, lambda p: torch.optim.Adagrad(p, 0.1, 0, 0.2)),
    ],
)
def test_optimisers_are_those_of_torch(keys: dict[str, Any], make: Any) -> None:
    start = FlatModel(network())
    np.testing.assert_allclose(trained(start, learning_rate=0.1, **keys), expected(start, make), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_clipped_gradient(optimiser: str) -> None:
    start = FlatModel(network())

    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, 0.1) if optimiser == "adam" else torch.optim.SGD(parameters, 0.1, 0.5)

    found = trained(start, learning_rate=0.1, optimiser=optimiser, clip_norm=0.05)
    np.testing.assert_allclose(found, expected(start, make, clip=0.05), rtol=2e-5, atol=1e-6)
    assert not np.allclose(found, expected(start, make))


def test_a_job_has_a_fresh_optimiser_and_its_own_learning_rate() -> None:
    start = FlatModel(network())
    once = trained(start, learning_rate=0.1, optimiser="adam")
    np.testing.assert_array_equal(once, trained(start, learning_rate=0.1, optimiser="adam"))
    half = trained(start, Objective(lr_scale=0.5), learning_rate=0.1, optimiser="adam")
    np.testing.assert_allclose(half, expected(start, lambda p: torch.optim.Adam(p, 0.05)), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 4, 5, 7, 15, 100])
def test_a_job_ends_after_the_most_steps(steps: int) -> None:
    start = FlatModel(network())
    found = trained(start, learning_rate=0.1, max_steps=steps)
    np.testing.assert_allclose(
        found, expected(start, lambda p: torch.optim.SGD(p, 0.1, 0.5), steps=steps), rtol=2e-5, atol=1e-6
    )


def test_the_loss_of_a_shortened_job_is_that_of_its_last_pass() -> None:
    """Five steps per epoch: with seven steps, the last pass has two, of five samples each."""
    x, y = samples()
    model = FlatModel(network())
    frozen = TrainingSection(epochs=3, batch_size=5, learning_rate=1e-30, max_steps=7)
    loss = train(model.network, x, y, LocalTraining(frozen, Objective(report_loss=True)), seed=11)
    index = torch.cat(batches(SAMPLES, SIZE, seed64(11, "shuffle", 1))[:2])
    assert loss.loss == pytest.approx(F.cross_entropy(model.network(x[index]), y[index]).item(), rel=1e-5)


# A batch of one sample


def normed(inner: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), inner, nn.Linear(6, 3))


def test_one_sample_and_batch_norm() -> None:
    """Eleven samples in batches of five: the last batch has one."""
    x, y = samples()
    model = FlatModel(normed(nn.BatchNorm1d(6)))
    start = model.save()
    train(model.network, x[:11], y[:11], LocalTraining(TrainingSection(epochs=2, batch_size=5)), seed=1)
    assert np.isfinite(model.save()).all()
    assert not np.array_equal(model.save(), start)
    assert model.layout.tensors(model.save())["1.num_batches_tracked"] == 4  # two in each epoch: not the lone ones
    assert all(module.training for module in model.network.modules())
    model.load(start)
    train(model.network, x[:1], y[:1], LocalTraining(TrainingSection(epochs=2, batch_size=5)), seed=1)
    changed = {
        n for n, t in model.layout.tensors(model.save()).items() if not torch.equal(t, model.layout.tensors(start)[n])
    }
    assert changed == {"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}  # its statistics stay


def test_one_sample_with_many_positions_is_normalised_by_them() -> None:
    """As torch does it: a picture has a variance of its own."""
    model = FlatModel(nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 3)))
    x = torch.randn(1, 1, 3, 3)
    train(model.network, x, torch.tensor([1]), LocalTraining(TrainingSection(epochs=2, batch_size=5)), seed=1)
    assert model.layout.tensors(model.save())["1.num_batches_tracked"] == 2


def test_default_settings_take_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of what other settings need: no copy, no norm, no draw, no torch optimiser; one fused call per step."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("not needed by default")

    for where, name in (
        (torch.nn.utils, "clip_grad_norm_"),
        (torch.optim.Optimizer, "__init__"),
        (training, "_alone"),
        (training, "_add_proximal"),
        (training, "_add_correction"),
        (training.Tally, "add"),
    ):
        monkeypatch.setattr(where, name, refuse)
    fused, calls = torch._fused_sgd_, []

    def counted(*arguments: Any, **keys: Any) -> None:
        calls.append(keys)
        fused(*arguments, **keys)

    monkeypatch.setattr(torch, "_fused_sgd_", counted)
    how = LocalTraining(TrainingSection(epochs=2, batch_size=5), Objective())
    x, y = torch.ones(10, 3), torch.zeros(10, dtype=torch.int64)
    train(nn.Linear(3, 2), x, y, how, seed=1)
    assert len(calls) == 4
    assert training._augmentation(how, 1) is None
    assert training.Steps(nn.Linear(3, 2), how).anchor == []
