"""Generated data: reproducible, learnable, and small per device at scale."""

import pytest
import torch

from cabafl.data import load
from cabafl.errors import UserError


def test_the_seed_determines_the_data() -> None:
    one, same, other = load("synthetic", seed=1), load("synthetic", seed=1), load("synthetic", seed=2)
    assert torch.equal(one.train.x, same.train.x)
    assert not torch.equal(one.test.x, other.test.x)


def test_users_have_enough_samples_and_the_classes_can_be_learned() -> None:
    data = load("synthetic", devices=200)
    assert data.train.users is not None
    sizes = torch.bincount(data.train.users)
    assert (len(sizes), len(data.test), data.input_shape) == (200, 1000, (32,))
    assert 10 <= int(sizes.min()) <= int(sizes.max()) <= 30
    centres = torch.stack([data.train.x[data.train.y == c].mean(0) for c in range(10)])
    guess = torch.cdist(data.test.x, centres).argmin(1)
    assert (guess == data.test.y).float().mean() > 0.8


def test_at_scale_a_device_has_one_or_two_samples() -> None:
    data = load("synthetic", devices=300_000)
    assert data.train.users is not None
    sizes = torch.bincount(data.train.users)
    assert (len(sizes), int(sizes.min()), int(sizes.max())) == (300_000, 1, 2)


def test_at_least_one_device_is_needed() -> None:
    with pytest.raises(UserError, match=r"data\.devices = 0"):
        load("synthetic", devices=0)
