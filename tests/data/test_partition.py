"""Partitions are disjoint, complete and reproducible; Dirichlet equals a plain loop over its definition."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cabafl.data.dataset import Partition, Split
from cabafl.data.partition import make_partition
from cabafl.errors import UserError
from cabafl.names import PARTITIONS
from cabafl.reporting.partition import class_counts
from cabafl.rng import rng


def split_of(n: int, fine_classes: int = 20, users: int = 7, seed: int = 0) -> Split:
    """Samples with two label levels (four fine classes in each coarse one) and users."""
    draw = np.random.default_rng(seed)
    fine = torch.from_numpy(draw.integers(fine_classes, size=n))
    return Split(torch.zeros(n, 1), fine, torch.from_numpy(draw.integers(users, size=n)), fine, fine // 4)


def make(kind: str, train: Split, devices: int | None, seed: int = 1, **given: Any) -> Partition:
    return make_partition(kind, train, devices, **({"beta": 0.5, "min_samples": 1} | given), seed=seed)


def check(partition: Partition, samples: NDArray[np.int64]) -> None:
    """Disjoint, exactly these samples, ascending on each device."""
    assert np.array_equal(np.sort(partition.indices), samples)
    assert partition.sizes.sum() == len(samples)
    for k in range(len(partition)):
        assert (np.diff(partition.device(k)) > 0).all()


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(["iid", "dirichlet", "shards", "coarse-balanced"]),
    n=st.integers(100, 700),
    devices=st.integers(1, 12),
    beta=st.floats(0.3, 10),
    seed=st.integers(0, 2**40),
)
def test_every_sample_is_assigned_once_and_reproducibly(
    kind: str, n: int, devices: int, beta: float, seed: int
) -> None:
    train = split_of(n)
    partition = make(kind, train, devices, seed, beta=beta)
    assert len(partition) == devices
    check(partition, np.arange(n))
    again = make(kind, train, devices, seed, beta=beta)
    assert np.array_equal(partition.indices, again.indices)
    assert np.array_equal(partition.offsets, again.offsets)


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards", "coarse-balanced"])
def test_another_seed_gives_another_partition(kind: str) -> None:
    train = split_of(700)
    partitions = {make(kind, train, 12, seed).indices.tobytes() for seed in range(10)}
    assert len(partitions) == 10


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 300), users=st.integers(1, 40), min_samples=st.integers(1, 12), seed=st.integers(0, 99))
def test_natural_keeps_every_sample_of_the_users_with_enough(n: int, users: int, min_samples: int, seed: int) -> None:
    train = split_of(n, users=users, seed=seed)
    assert train.users is not None
    owner = train.users.numpy()
    counts = np.bincount(owner, minlength=users)
    enough = np.flatnonzero(counts >= min_samples)
    if not len(enough):
        with pytest.raises(UserError, match=f"only 0 users have data.min_samples = {min_samples}"):
            make("natural", train, None, min_samples=min_samples)
        return
    partition = make("natural", train, None, min_samples=min_samples)
    check(partition, np.flatnonzero(counts[owner] >= min_samples))
    assert partition.sizes.tolist() == counts[enough].tolist()
    assert all(len(set(owner[partition.device(k)])) == 1 for k in range(len(partition)))


def test_natural_draws_the_given_number_of_users() -> None:
    train = split_of(2000, users=50)
    chosen = [make("natural", train, 10, seed) for seed in (1, 1, 2)]
    assert [len(partition) for partition in chosen] == [10, 10, 10]
    assert np.array_equal(chosen[0].indices, chosen[1].indices)
    assert not np.array_equal(chosen[0].indices, chosen[2].indices)
    with pytest.raises(UserError, match=r"data\.devices = 51: only 50 users"):
        make("natural", train, 51)


def naive_dirichlet(y: list[int], devices: int, beta: float, min_samples: int, seed: int) -> list[list[int]]:
    draw, shuffle = rng(seed, "partition/dirichlet"), rng(seed, "partition/shuffle")
    while True:
        held = [0] * devices
        cuts_of = []
        for label in range(max(y) + 1):
            share = [
                p if h < len(y) / devices else 0 for p, h in zip(draw.dirichlet([beta] * devices), held, strict=True)
            ]
            running, cuts = 0.0, [0]
            total = float(np.cumsum(share)[-1])
            for p in share:
                running += p
                cuts.append(int(running / total * y.count(label)))
            cuts_of.append(cuts)
            held = [h + b - a for h, (a, b) in zip(held, pairwise(cuts), strict=True)]
        if min(held) >= min_samples:
            break
    found: list[list[int]] = [[] for _ in range(devices)]
    for label, cuts in enumerate(cuts_of):
        members = shuffle.permutation([i for i, value in enumerate(y) if value == label])
        for k in range(devices):
            found[k] += members[cuts[k] : cuts[k + 1]].tolist()
    return [sorted(indices) for indices in found]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("beta", "devices", "min_samples"), [(0.1, 10, 10), (0.5, 20, 10), (5.0, 7, 50)])
def test_dirichlet_equals_a_plain_loop(seed: int, beta: float, devices: int, min_samples: int) -> None:
    train = split_of(2000, fine_classes=10, seed=seed)
    partition = make("dirichlet", train, devices, seed, beta=beta, min_samples=min_samples)
    expected = naive_dirichlet(train.y.tolist(), devices, beta, min_samples, seed)
    assert [partition.device(k).tolist() for k in range(devices)] == expected


def test_a_small_beta_gives_few_classes_per_device() -> None:
    train = split_of(20000, fine_classes=10)
    held = {
        beta: (class_counts(make("dirichlet", train, 20, beta=beta), train.y.numpy(), 10) > 0).sum() / 20
        for beta in (0.05, 100.0)
    }
    assert held[0.05] < 5
    assert held[100.0] == 10


def test_dirichlet_gives_up_with_all_settings_in_the_error() -> None:
    with pytest.raises(UserError, match=r"devices = 100, data\.beta = 0\.1, data\.min_samples = 10.*1000 redraws"):
        make("dirichlet", split_of(4000, 10), 100, beta=0.1, min_samples=10)


def test_an_impossible_dirichlet_split_is_rejected_at_once() -> None:
    with pytest.raises(UserError, match=r"data\.devices = 100, .* needs 1000 training samples, there are 999"):
        make("dirichlet", split_of(999), 100, min_samples=10)


def test_a_tiny_beta_gives_an_error_not_nan() -> None:
    with pytest.raises(UserError, match="redraws"):
        make("dirichlet", split_of(500, 10), 20, beta=1e-4, min_samples=5)


def test_iid_sizes_differ_by_at_most_one() -> None:
    assert sorted(set(make("iid", split_of(1003), 100).sizes.tolist())) == [10, 11]


def test_shards_hold_few_labels() -> None:
    train = split_of(1000, fine_classes=10)
    partition = make("shards", train, 50, shards=2)
    assert set(partition.sizes.tolist()) == {20}
    assert (class_counts(partition, train.y.numpy(), 10) > 0).sum(axis=1).max() <= 4


@pytest.mark.parametrize("beta", [0.01, 0.5])
@pytest.mark.parametrize("devices", [7, 30])
def test_coarse_balanced_is_even_over_coarse_and_uneven_over_fine_classes(beta: float, devices: int) -> None:
    train = split_of(5000)
    assert train.coarse is not None
    partition = make("coarse-balanced", train, devices, beta=beta)
    coarse = class_counts(partition, train.coarse.numpy(), 5)
    assert (coarse.max(axis=0) - coarse.min(axis=0)).max() <= 1
    assert partition.sizes.max() - partition.sizes.min() <= 1
    fine = class_counts(partition, train.y.numpy(), 20)
    assert (fine.max(axis=0) - fine.min(axis=0)).min() > 5


def test_default_is_100_devices_or_every_user() -> None:
    train = split_of(3000, users=33)
    lengths = {kind: len(make(kind, train, None)) for kind in PARTITIONS}
    assert lengths == dict.fromkeys(PARTITIONS, 100) | {"natural": 33}


@pytest.mark.parametrize("kind", ["iid", "shards"])
def test_a_million_devices(kind: str) -> None:
    n = 1_000_000
    train = Split(torch.zeros(n, 1), torch.arange(n) % 10)
    partition = make(kind, train, n, shards=1)
    assert (partition.sizes == 1).all()
    assert len(np.unique(partition.indices)) == n


@pytest.mark.parametrize(
    ("kind", "devices", "given", "reason"),
    [
        ("irichlet", 5, {}, "did you mean 'dirichlet'"),
        ("iid", 0, {}, "data.devices = 0"),
        ("iid", 51, {}, "data.devices = 51: needs 51 training samples, there are 50"),
        ("dirichlet", 5, {"beta": 0.0}, "data.beta = 0.0"),
        ("dirichlet", 5, {"beta": float("nan")}, "data.beta = nan"),
        ("shards", 5, {"shards": 0}, "data.shards = 0"),
        ("shards", 26, {}, "needs 52 training samples"),
        ("natural", None, {}, "no users; accepted: iid, dirichlet, shards$"),
        ("coarse-balanced", 5, {}, "one label level"),
    ],
)
def test_impossible_partitions(kind: str, devices: int | None, given: dict[str, Any], reason: str) -> None:
    plain = Split(torch.zeros(50, 1), torch.arange(50) % 10)
    with pytest.raises(UserError, match=reason):
        make(kind, plain, devices, **given)


def test_device_numbers_are_checked() -> None:
    partition = make("iid", split_of(100), 5)
    for k in (-1, 5):
        with pytest.raises(IndexError):
            partition.device(k)
