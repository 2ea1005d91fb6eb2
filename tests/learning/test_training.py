"""Local training against a naive implementation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from cabafl.config import TrainingSection
from cabafl.learning.dp import DpSgd
from cabafl.learning.task import FlatModel
from cabafl.learning.training import Cancelled, LocalTraining, batches, passes_of, train
from cabafl.methods.base import Objective


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 100])
def test_passes_are_those_of_the_training(steps: int) -> None:
    """Counted with the batches that training takes."""
    sizes = np.array([1, 20, 21, 50, 133])
    for size, found in zip(sizes.tolist(), passes_of(steps, 20, sizes), strict=True):
        lengths = [len(batch) for epoch in range(steps) for batch in batches(size, 20, epoch)]
        assert found == pytest.approx(sum(lengths[:steps]) / size)


def normed() -> nn.Module:
    """A network with floating and integer buffers."""
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


@given(st.integers(1, 120), st.integers(1, 50), st.integers(0, 2**40))
def test_an_epoch_visits_every_sample_once(samples: int, size: int, seed: int) -> None:
    parts = batches(samples, size, seed)
    assert sorted(torch.cat(parts).tolist()) == list(range(samples))
    assert all(len(part) == size for part in parts[:-1])
    assert [p.tolist() for p in parts] == [p.tolist() for p in batches(samples, size, seed)]


def naive_sgd(network: nn.Module, x: Tensor, y: Tensor, s: LocalTraining, orders: list[tuple[Tensor, ...]]) -> None:
    """u <- m u + g + prox (w - start) + correction; w <- w - lr u, written out."""
    parameters = list(network.parameters())
    start = [p.detach().clone() for p in parameters]
    momentum = [torch.zeros_like(p) for p in parameters]
    for order in orders:
        for batch in order:
            added = iter(s.correction or ())
            network.zero_grad()
            F.cross_entropy(network(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for p, u, w0 in zip(parameters, momentum, start, strict=True):
                    assert p.grad is not None
                    settings, prox = s.settings, s.objective.prox
                    u.mul_(settings.momentum).add_(p.grad + prox * (p - w0) + settings.weight_decay * p)
                    if s.correction is not None:
                        u.add_(next(added))
                    p.sub_(s.learning_rate * u)


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("prox", [0.0, 0.3])
def test_local_training_is_sgd_as_specified(prox: float, corrected: bool) -> None:
    from cabafl.rng import seed64

    x, y = torch.randn(23, 4), torch.randint(0, 3, (23,))
    section = TrainingSection(epochs=3, batch_size=5, learning_rate=0.1, momentum=0.5, weight_decay=0.01)
    fast, naive = FlatModel(normed()), FlatModel(normed())
    vector = np.linspace(-0.5, 0.5, fast.layout.size, dtype=np.float32)
    settings = LocalTraining(
        section, Objective(prox=prox), correction=fast.trained_parts(vector) if corrected else None
    )
    naive.load(fast.save())
    train(fast.network, x, y, settings, seed=11)
    naive.network.train()
    naive_sgd(naive.network, x, y, settings, [batches(23, 5, seed64(11, "shuffle", epoch)) for epoch in range(3)])
    np.testing.assert_allclose(fast.save(), naive.save(), rtol=2e-4, atol=1e-6)


def test_dropout_follows_from_the_job_not_from_the_global_generator() -> None:
    x, y = torch.randn(20, 4), torch.randint(0, 3, (20,))
    model = FlatModel(nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 3)))
    start = model.save()
    results = []
    for noise, seed in ((1, 5), (2, 5), (3, 6)):
        torch.manual_seed(noise)
        model.load(start)
        train(model.network, x, y, LocalTraining(TrainingSection(epochs=2, batch_size=20)), seed)
        results.append(model.save())
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


def small_job() -> tuple[FlatModel, Tensor, Tensor]:
    return FlatModel(normed()), torch.randn(23, 4), torch.randint(0, 3, (23,))


@pytest.mark.parametrize("steps", [0, 1, 7, 14])
def test_a_training_is_asked_before_every_step_and_stops_there(steps: int) -> None:
    """15 steps; those before the stop are the ones of a whole training of another length."""
    model, x, y = small_job()
    seen: list[list[float]] = []

    def stop() -> bool:
        seen.append(model.save().tolist())
        return len(seen) > steps

    settings = TrainingSection(epochs=3, batch_size=5)
    before = torch.default_generator.get_state()
    with pytest.raises(Cancelled):
        train(model.network, x, y, LocalTraining(settings, stop=stop), seed=11)
    assert len(seen) == steps + 1
    assert model.save().tolist() == seen[-1], "no step after the stop"
    assert len({tuple(each) for each in seen}) == steps + 1, "one step between two questions"
    assert torch.equal(torch.default_generator.get_state(), before)


def test_a_training_that_is_not_stopped_gives_the_same_bits() -> None:
    model, x, y = small_job()
    start = model.save()
    asked = iter(range(1000))
    found = []
    for stop in (None, lambda: next(asked) < 0):
        model.load(start)
        train(model.network, x, y, LocalTraining(TrainingSection(epochs=3, batch_size=5), stop=stop), seed=11)
        found.append(model.save())
    np.testing.assert_array_equal(found[0], found[1])
    assert next(asked) == 15


def test_gradients_of_a_failed_job_do_not_reach_the_next() -> None:
    model, x, y = small_job()
    start = model.save()
    settings = LocalTraining(TrainingSection(epochs=1, batch_size=5))
    train(model.network, x, y, settings, seed=11)
    clean = model.save()
    model.load(start)
    F.cross_entropy(model.network(x), y).backward()  # type: ignore[no-untyped-call]
    model.load(start)
    train(model.network, x, y, settings, seed=11)
    np.testing.assert_array_equal(model.save(), clean)


# Fewer epochs, and what is reported


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("done", [1, 2, 3])
def test_a_training_that_ends_early_is_one_of_so_many_epochs(done: int, private: bool) -> None:
    if private:
        pytest.importorskip("opacus", reason="Opacus is not installed (extra `dp`)")
    model = FlatModel(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    x, y = torch.randn(23, 4), torch.randint(0, 3, (23,))
    start, section, dp = model.save(), TrainingSection(epochs=4, batch_size=5), DpSgd(1.0, 0.5) if private else None
    asked: list[int] = []

    def enough(epochs: int) -> bool:
        asked.append(epochs)
        return epochs == done

    early = train(model.network, x, y, LocalTraining(section, Objective(report_loss=True), dp, enough=enough), seed=11)
    weights = model.save()
    model.load(start)
    whole = train(model.network, x, y, LocalTraining(section, Objective(done, report_loss=True), dp), seed=11)
    np.testing.assert_array_equal(weights, model.save())
    assert early == whole
    assert (early.steps, early.epochs) == (5 * done, done)
    assert asked == list(range(1, done + 1)), "not before the first epoch"


def test_the_square_of_the_sample_losses_is_that_of_the_first_epoch() -> None:
    """With a learning rate of nearly 0 the losses of all epochs are those of the model at the start."""
    model, x, y = FlatModel(nn.Linear(4, 3)), torch.randn(23, 4), torch.randint(0, 3, (23,))
    section = TrainingSection(epochs=3, batch_size=5, learning_rate=1e-9)
    losses = F.cross_entropy(model.network(x), y, reduction="none").detach()
    figures = train(model.network, x, y, LocalTraining(section, Objective(report_square=True)), seed=11)
    assert figures.square_loss == pytest.approx(float((losses**2).mean()), rel=1e-5)
    assert figures.square_loss != pytest.approx(float(losses.mean()) ** 2, rel=1e-3)
    assert (figures.loss, figures.steps, figures.epochs) == (None, 15, 3)
    fast = TrainingSection(epochs=3, batch_size=23, learning_rate=1.0)
    first = float((F.cross_entropy(model.network(x), y, reduction="none").detach() ** 2).mean())
    figures = train(model.network, x, y, LocalTraining(fast, Objective(report_square=True, report_loss=True)), seed=11)
    assert figures.square_loss == pytest.approx(first, rel=1e-5), "not of a later epoch"


def test_with_privacy_a_correction_comes_after_the_noise() -> None:
    """One step: the corrected and the plain training differ by the correction times the learning rate."""
    pytest.importorskip("opacus", reason="Opacus is not installed (extra `dp`)")
    model, x, y = FlatModel(nn.Linear(4, 3)), torch.randn(23, 4), torch.randint(0, 3, (23,))
    start, vector = model.save(), np.linspace(-100, 100, 15, dtype=np.float32)
    section = TrainingSection(epochs=1, batch_size=23, learning_rate=0.1)
    found = []
    for correction in (None, model.trained_parts(vector)):
        model.load(start)
        train(model.network, x, y, LocalTraining(section, dp=DpSgd(1.0, 0.5), correction=correction), seed=11)
        found.append(model.save())
    np.testing.assert_allclose(found[1] - found[0], -0.1 * vector, rtol=1e-4)


def test_a_correction_has_no_part_for_buffers_and_frozen_parameters() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    next(network.parameters()).requires_grad = False
    model = FlatModel(network)
    parts = model.trained_parts(np.arange(model.layout.size, dtype=np.float32))
    assert [part.tolist() for part in parts] == [[6.0, 7.0, 8.0], [9.0, 10.0, 11.0], [12.0, 13.0, 14.0]]
