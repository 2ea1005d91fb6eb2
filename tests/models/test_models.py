"""The networks: sizes, shapes, feature layers, padding, the user's own."""

import pytest
import torch
from torch import nn

from cabafl import models
from cabafl.errors import UserError
from cabafl.learning.features import feature_sum, find_layer
from cabafl.learning.training import seeded

CIFAR, DIGIT = (3, 32, 32), (1, 28, 28)


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("name", "kind", "shape", "classes", "count", "feature"),
    [
        ("cnn", "image", CIFAR, 10, 62_006, 400),
        ("cnn", "image", CIFAR, 100, 69_656, 400),
        ("cnn", "image", DIGIT, 10, 147_146, 256),
        ("cnn", "image", DIGIT, 62, 160_510, 256),
        ("resnet18", "image", CIFAR, 10, 11_173_962, 512),
        ("resnet18", "image", DIGIT, 10, 11_172_810, 512),
        ("vgg16", "image", CIFAR, 10, 33_646_666, 512),
        ("vgg16", "image", DIGIT, 10, 33_645_514, 512),
        ("lstm", "text", (80,), 80, 819_920, 256),
        ("mlp", "vector", (561,), 6, 153_806, 200),
        ("mlp", "vector", (128, 6), 6, 195_206, 200),
        ("mlp", "image", DIGIT, 10, 199_210, 200),
    ],
)
def test_size_output_and_default_feature(
    name: str, kind: str, shape: tuple[int, ...], classes: int, count: int, feature: int
) -> None:
    network = models.build(name, kind, shape, classes)
    assert parameters(network) == count
    x = torch.randint(0, 80, (2, *shape)) if kind == "text" else torch.rand(2, *shape)
    assert network(x).shape == (2, classes)
    layer = find_layer(network, models.default_feature_layer(name, network))
    assert feature_sum(network, layer, x).shape == (feature,)


@pytest.mark.parametrize(("block", "width"), [("block1", 64), ("block2", 128), ("block3", 256), ("block4", 512)])
def test_resnet_blocks_as_features(block: str, width: int) -> None:
    network = models.build("resnet18", "image", DIGIT, 10)
    assert feature_sum(network, find_layer(network, block), torch.rand(2, *DIGIT)).shape == (width,)


@pytest.mark.parametrize(
    ("name", "width", "count", "feature"),
    [
        ("resnet18", 0.25, 701_466, 128),
        ("vgg16", 0.25, 2_114_842, 128),
        ("resnet18", 0.001, None, 1),
        ("vgg16", 0.001, None, 1),
        ("resnet18", 1.5, None, 768),
        ("resnet18", 0.3, None, 154),
    ],
)
def test_width_scales_channels_and_feature(name: str, width: float, count: int | None, feature: int) -> None:
    network = models.build(name, "image", CIFAR, 10, width)
    assert count is None or parameters(network) == count
    x = torch.rand(2, *CIFAR)
    assert network(x).shape == (2, 10)
    layer = find_layer(network, models.default_feature_layer(name, network))
    assert feature_sum(network, layer, x).shape == (feature,)


def test_width_scales_the_units_of_the_lstm() -> None:
    network = models.build("lstm", "text", (80,), 90, 0.25)
    assert network(torch.zeros(2, 80, dtype=torch.int64)).shape == (2, 90)
    assert feature_sum(network, find_layer(network, "lstm"), torch.zeros(2, 80, dtype=torch.int64)).shape == (64,)


def test_width_of_users_own_network() -> None:
    wide, usual = (models.build(f"{__name__}:Wide", "vector", (5,), 7, width) for width in (0.5, 1.0))
    assert (parameters(wide), parameters(usual)) == (5 * 4 + 4 + 4 * 7 + 7, 5 * 8 + 8 + 8 * 7 + 7)


@pytest.mark.parametrize("name", ["cnn", "mlp", f"{__name__}:MyNet", f"{__name__}:Fixed"])
def test_a_width_that_a_network_does_not_have(name: str) -> None:
    kind, shape = ("image", CIFAR) if name == "cnn" else ("vector", (5,))
    with pytest.raises(
        UserError, match=r"^model\.width = 0\.5: model\.name = .* accepted: 1\.0, or lstm, resnet18, vgg16 or"
    ):
        models.build(name, kind, shape, 10, 0.5)


def test_resnet_starts_from_kaiming_normal_convolutions() -> None:
    """Standard deviation sqrt(2 / fan-out), normal and not uniform; batch norm starts as the identity."""
    with seeded(5):
        network = models.build("resnet18", "image", CIFAR, 10)
    with seeded(5):
        again = models.build("resnet18", "image", CIFAR, 10)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 20
    for module in convolutions:
        deviation = (2 / (module.out_channels * module.kernel_size[0] ** 2)) ** 0.5
        scaled = module.weight.detach().flatten() / deviation
        assert abs(scaled.std().item() - 1) < 0.05
        assert abs(scaled.mean().item()) < 0.1
        assert scaled.abs().max().item() > 2.5  # a uniform distribution of this deviation ends at 1.73
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            assert (norm.weight == 1).all()
            assert (norm.bias == 0).all()


def test_pooling_before_relu_changes_nothing() -> None:
    """The same network with ReLU first: equal output and equal gradients."""
    network = models.build("cnn", "image", CIFAR, 10)
    assert isinstance(network, nn.Sequential)
    order = ["conv1", "relu1", "pool1", "conv2", "relu2", "pool2", *list(dict(network.named_children()))[6:]]
    usual = nn.Sequential(*(network.get_submodule(name) for name in order))
    x = torch.rand(4, *CIFAR) * 2 - 1
    gradients = []
    for net in (network, usual):
        net.zero_grad()
        net(x).logsumexp(dim=1).sum().backward()
        gradients.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
    torch.testing.assert_close(network(x), usual(x))
    torch.testing.assert_close(gradients[0], gradients[1])


def test_initial_weights_follow_from_the_seed_and_leave_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    nets = []
    for seed in (3, 3, 4):
        with seeded(seed):
            nets.append(models.build("mlp", "vector", (5,), 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    first, second, other = (torch.cat([p.flatten() for p in net.parameters()]) for net in nets)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


class MyNet(nn.Module):
    feature_layer = "hidden"

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(input_shape[0], 3)
        self.out = nn.Linear(3, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.hidden(x))
        return scores


class Fixed(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 2)


def not_a_network() -> None:
    """Returns no network."""


class Wide(nn.Sequential):
    """Has a width, with a default."""

    def __init__(self, input_shape: tuple[int, ...], classes: int, width: float = 1.0) -> None:
        units = int(8 * width)
        super().__init__(nn.Linear(input_shape[0], units), nn.Linear(units, classes))


def test_users_own_network() -> None:
    network = models.build(f"{__name__}:MyNet", "vector", (5,), 7)
    assert network(torch.rand(2, 5)).shape == (2, 7)
    assert models.default_feature_layer(f"{__name__}:MyNet", network) == "hidden"
    fixed = models.build(f"{__name__}:Fixed", "vector", (4,), 2)
    assert models.default_feature_layer(f"{__name__}:Fixed", fixed) is None


@pytest.mark.parametrize(
    ("name", "kind", "shape", "says"),
    [
        ("resnet", "image", CIFAR, "did you mean 'resnet18'"),
        ("cnn", "vector", (5,), "does not take vector data.*mlp"),
        ("mlp", "text", (80,), "does not take text data.*lstm"),
        ("lstm", "image", CIFAR, "does not take image data"),
        ("cnn", "image", (1, 8, 8), "too small"),
        ("resnet18", "image", (3, 64, 64), "32x32"),
        ("nowhere:Net", "image", CIFAR, "cannot be imported"),
        (f"{__name__}:not_a_network", "image", CIFAR, "accepted: a torch.nn.Module"),
    ],
)
def test_models_that_do_not_fit(name: str, kind: str, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(UserError, match=says):
        models.build(name, kind, shape, 10)
