"""Flat weights: loading, saving, buffers."""

import numpy as np
import torch
from torch import nn

from cabafl.learning.task import FlatModel


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
