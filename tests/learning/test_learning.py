"""Flat weights, local training, features and evaluation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from cabafl import models
from cabafl.config import Experiment, ModelSection, TrainingSection
from cabafl.data.dataset import Dataset, Split
from cabafl.data.partition import Partition
from cabafl.errors import UserError
from cabafl.learning.evaluation import evaluate
from cabafl.learning.features import feature_sum, find_layer, label_histogram
from cabafl.learning.privacy import FeaturePrivacy
from cabafl.learning.spec import TaskSpec
from cabafl.learning.task import Task
from cabafl.learning.training import LocalTraining, batches, train
from cabafl.learning.weights import FlatModel
from cabafl.methods.base import PLAIN, Objective


def normed() -> nn.Module:
    """A network with floating and integer buffers."""
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def test_weights_round_trip_with_buffers() -> None:
    model = FlatModel(normed())
    model.network(torch.rand(8, 4))  # batch statistics and counter move
    weights = model.save()
    other = FlatModel(normed())
    other.load(weights)
    for (name, a), b in zip(model.network.state_dict().items(), other.network.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    layout = model.layout
    assert layout.trainable == sum(p.numel() for p in model.network.parameters())
    assert layout.names[-1] == "1.num_batches_tracked"
    assert layout.integers == layout.size - 1
    assert layout.bytes == 4 * layout.size
    np.testing.assert_array_equal(other.save(), weights)


def test_integer_buffers_are_rounded_when_loaded() -> None:
    model = FlatModel(normed())
    weights = model.save()
    weights[-1] = 2.6
    model.load(weights)
    assert int(model.network.state_dict()["1.num_batches_tracked"]) == 3
    assert model.layout.tensors(weights)["1.num_batches_tracked"].dtype == torch.int64


def test_saved_tensors_have_the_names_and_shapes_of_the_state() -> None:
    model = FlatModel(normed())
    named = model.layout.tensors(model.save())
    assert {name: t.shape for name, t in named.items()} == {n: t.shape for n, t in model.network.state_dict().items()}


@given(st.integers(1, 120), st.integers(1, 50), st.integers(0, 2**40))
def test_an_epoch_visits_every_sample_once(samples: int, size: int, seed: int) -> None:
    parts = batches(samples, size, seed)
    assert sorted(torch.cat(parts).tolist()) == list(range(samples))
    assert all(len(part) == size for part in parts[:-1])
    assert [p.tolist() for p in parts] == [p.tolist() for p in batches(samples, size, seed)]


def naive_sgd(network: nn.Module, x: Tensor, y: Tensor, s: LocalTraining, orders: list[tuple[Tensor, ...]]) -> None:
    """u <- m u + g + prox (w - start); w <- w - lr u, written out."""
    parameters = list(network.parameters())
    start = [p.detach().clone() for p in parameters]
    momentum = [torch.zeros_like(p) for p in parameters]
    for order in orders:
        for batch in order:
            network.zero_grad()
            F.cross_entropy(network(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for p, u, w0 in zip(parameters, momentum, start, strict=True):
                    assert p.grad is not None
                    settings, prox = s.settings, s.objective.prox
                    u.mul_(settings.momentum).add_(p.grad + prox * (p - w0) + settings.weight_decay * p)
                    p.sub_(s.learning_rate * u)


@pytest.mark.parametrize("prox", [0.0, 0.3])
def test_local_training_is_sgd_as_specified(prox: float) -> None:
    from cabafl.rng import seed64

    x, y = torch.randn(23, 4), torch.randint(0, 3, (23,))
    section = TrainingSection(epochs=3, batch_size=5, learning_rate=0.1, momentum=0.5, weight_decay=0.01)
    settings = LocalTraining(section, Objective(prox=prox))
    fast, naive = FlatModel(normed()), FlatModel(normed())
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


@pytest.mark.parametrize(
    ("name", "kind", "shape"),
    [("cnn", "image", (3, 32, 32)), ("cnn", "image", (1, 28, 28)), ("mlp", "vector", (9,)), ("lstm", "text", (12,))],
)
@pytest.mark.parametrize("counts", [False, True])
def test_features_are_additive(name: str, kind: str, shape: tuple[int, ...], counts: bool) -> None:
    network = models.build(name, kind, shape, 80 if kind == "text" else 10)
    layer = find_layer(network, models.default_feature_layer(name, network))
    x = torch.randint(0, 80, (37, *shape)) if kind == "text" else torch.randn(37, *shape)
    whole = feature_sum(network, layer, x, counts)
    parts = [feature_sum(network, layer, x[a:b], counts) for a, b in ((0, 5), (5, 6), (6, 37))]
    torch.testing.assert_close(whole, torch.stack(parts).sum(dim=0), rtol=1e-6, atol=1e-6 * float(whole.abs().max()))
    assert whole.dtype == torch.float64


def test_features_of_convolutions_are_averaged_and_counts_are_counted_over_positions() -> None:
    network = nn.Sequential(nn.Identity())
    x = torch.tensor([[[[1.0, -1.0], [3.0, 1.0]], [[0.0, 0.0], [0.0, 2.0]]]])
    layer = find_layer(network, "0")
    assert feature_sum(network, layer, x).tolist() == [1.0, 0.5]
    assert feature_sum(network, layer, x, counts=True).tolist() == [3.0, 1.0]
    sequence = torch.tensor([[[1.0, -1.0], [3.0, 1.0], [-2.0, 5.0]]])
    assert feature_sum(network, layer, sequence).tolist() == [-2.0, 5.0]
    assert feature_sum(network, layer, sequence, counts=True).tolist() == [2.0, 2.0]


def test_labels_as_features() -> None:
    assert label_histogram(torch.tensor([0, 2, 2]), 4).tolist() == [1.0, 0.0, 2.0, 0.0]


def test_unknown_feature_layer_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'relu3'"):
        find_layer(models.build("cnn", "image", (1, 28, 28), 10), "relu33")


def task(samples: int = 60, devices: int = 4) -> Task:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 5, generator=draw)
    y = torch.randint(0, 3, (samples,), generator=draw)
    data = Dataset("toy", "vector", Split(x, y), Split(x[:30], y[:30]), 3)
    offsets = np.linspace(0, samples, devices + 1).astype(np.int64)
    offsets[1] = offsets[0]  # device 0 has nothing
    partition = Partition(np.arange(samples, dtype=np.int64), offsets)
    experiment = Experiment(model=ModelSection(name="mlp", feature_layer="relu2"))
    return TaskSpec.of(experiment, data).build(data, partition)


def test_a_job_depends_on_its_number_device_and_weights_only() -> None:
    work = task()
    start = work.model.save()
    first = work.train(7, 2, start, PLAIN).weights
    work.train(8, 3, first, PLAIN)
    work.evaluate(first, 0)
    np.testing.assert_array_equal(work.train(7, 2, start, PLAIN).weights, first)
    assert not np.array_equal(work.train(9, 2, start, PLAIN).weights, first)
    assert not np.array_equal(work.train(7, 2, start, Objective(epochs=1)).weights, first)
    assert not np.array_equal(work.train(7, 2, start, Objective(lr_scale=0.5)).weights, first)


def test_a_job_tells_its_training_loss_only_when_asked() -> None:
    work = task()
    start = work.model.save()
    x, y = work.gather(work.partition.device(2))
    work.model.load(start)
    work.model.network.train()
    expected = F.cross_entropy(work.model.network(x), y).item()
    work.spec = work.spec.model_copy(update={"training": TrainingSection(epochs=1, batch_size=len(y))})
    told = work.train(7, 2, start, Objective(report_loss=True))
    assert told.loss == pytest.approx(expected, rel=1e-6)  # one batch: the loss before the only step
    silent = work.train(7, 2, start, PLAIN)
    assert silent.loss is None
    np.testing.assert_array_equal(silent.weights, told.weights)


def test_features_of_a_device_do_not_depend_on_the_chunk_and_empty_devices_have_none() -> None:
    work = task()
    weights = work.model.save()
    rows = work.features(weights, "activations", range(4))
    np.testing.assert_array_equal(rows[2], work.features(weights, "activations", range(2, 3))[0])
    assert not rows[0].any()
    labels = work.features(weights, "labels", range(4))
    assert labels.sum() == 60
    assert [list(chunk) for chunk in work.feature_chunks()] == [[0, 1, 2, 3]]


def test_evaluation_counts() -> None:
    network = nn.Identity()
    scores = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]])
    score = evaluate(network, scores, torch.tensor([0, 1, 1]), batch=2)
    assert (score.correct, score.samples) == (2, 3)
    assert score.loss == pytest.approx(float(F.cross_entropy(scores, torch.tensor([0, 1, 1]), reduction="sum")))


def test_features_are_clipped_and_blurred_on_the_device() -> None:
    work = task()
    start = work.model.save()
    plain = work.features(start, "activations", range(1, 4))
    norms = np.linalg.norm(plain, axis=1)
    work.feature_privacy = FeaturePrivacy(clip=float(np.median(norms)))
    clipped = work.features(start, "activations", range(1, 4))
    np.testing.assert_allclose(np.linalg.norm(clipped, axis=1), np.minimum(norms, np.median(norms)), rtol=1e-5)
    np.testing.assert_allclose(clipped / np.linalg.norm(clipped, axis=1)[:, None], plain / norms[:, None], rtol=1e-4)
    work.feature_privacy = FeaturePrivacy(clip=float(np.median(norms)), noise=0.5)
    blurred = work.features(start, "activations", range(1, 4))
    np.testing.assert_array_equal(work.features(start, "activations", [3])[0], blurred[2])  # whatever the chunk
    noise = blurred - clipped
    assert np.std(noise) == pytest.approx(0.5 * np.median(norms), rel=0.3)
    other = work.features(start + 1, "activations", [3]) - blurred[2]
    assert np.abs(other).max() > 0
    assert abs(np.corrcoef(noise)[0, 1]) < 0.5  # devices do not share their noise
