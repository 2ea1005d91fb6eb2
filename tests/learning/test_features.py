"""Features: sums of activations, counts and labels."""

import pytest
import torch
from torch import nn

from cabafl import models
from cabafl.errors import UserError
from cabafl.learning.features import feature_sum, find_layer, label_histogram


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
