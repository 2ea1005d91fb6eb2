"""Assigns the training samples to devices."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cabafl.data.dataset import Partition, Split
from cabafl.errors import UserError
from cabafl.names import PARTITIONS
from cabafl.rng import rng
from cabafl.validation import unknown

Int = NDArray[np.int64]
DEFAULT_DEVICES = 100
NEED_CLASSES = ("dirichlet", "shards", "coarse-balanced")
MAX_REDRAWS = 1000  # of a Dirichlet split in which a device has too few samples


def make_partition(
    kind: str,
    train: Split,
    devices: int | None,
    *,
    beta: float,
    min_samples: int,
    shards: int = 2,
    seed: int,
) -> Partition:
    """Partitions the training samples; ``devices`` = None means 100, or one per user for the natural partition.

    ``beta`` applies to dirichlet and coarse-balanced, ``min_samples`` to dirichlet and natural, ``shards`` to shards.
    """
    if devices is not None and devices < 1:
        raise UserError(f"data.devices = {devices}: at least 1 device is needed")
    if not 0 < beta < np.inf:
        raise UserError(f"data.beta = {beta}: a positive number is needed")
    if kind == "natural":
        return _natural(train, devices, min_samples, seed)
    if kind in NEED_CLASSES and not train.labelled:
        possible = "iid" if train.users is None else "iid, natural"
        raise UserError(f"data.partition = {kind!r}: this data has no classes; accepted: {possible}")
    n = DEFAULT_DEVICES if devices is None else devices
    assign: dict[str, Callable[[], Int]] = {
        "iid": lambda: _iid(train, n, seed),
        "dirichlet": lambda: _dirichlet(train, n, beta, min_samples, seed),
        "shards": lambda: _shards(train, n, shards, seed),
        "coarse-balanced": lambda: _coarse_balanced(train, n, beta, seed),
    }
    if kind not in assign:
        raise unknown("data.partition", kind, PARTITIONS)
    return _from_owners(assign[kind](), n)


def _from_owners(owner: Int, devices: int) -> Partition:
    """The partition in which device owner[i] has sample i; samples with a negative owner are left out."""
    indices = np.argsort(owner, kind="stable")[np.count_nonzero(owner < 0) :]
    counts = np.bincount(owner[owner >= 0], minlength=devices)
    return Partition(indices.astype(np.int64), np.concatenate(([0], np.cumsum(counts))).astype(np.int64))


def _even_pieces(n: int, pieces: int) -> Int:
    """Cuts n positions into pieces whose sizes differ by at most one; returns the piece of each position."""
    return np.repeat(np.arange(pieces), n // pieces + (np.arange(pieces) < n % pieces))


def _require_samples(train: Split, needed: int, setting: str) -> None:
    if needed > len(train):
        raise UserError(f"{setting}: needs {needed} training samples, there are {len(train)}")


def _iid(train: Split, devices: int, seed: int) -> Int:
    _require_samples(train, devices, f"data.partition = 'iid' with data.devices = {devices}")
    owner = np.empty(len(train), np.int64)
    owner[rng(seed, "partition/iid").permutation(len(train))] = _even_pieces(len(train), devices)
    return owner


def _shards(train: Split, devices: int, shards: int, seed: int) -> Int:
    """Sorts the samples by label, cuts them into pieces and gives each device ``shards`` random ones."""
    if shards < 1:
        raise UserError(f"data.shards = {shards}: at least 1 shard per device is needed")
    pieces = devices * shards
    _require_samples(train, pieces, f"data.partition = 'shards' with data.devices = {devices} and {shards} shards each")
    holder = np.empty(pieces, np.int64)
    holder[rng(seed, "partition/shards").permutation(pieces)] = np.arange(pieces) // shards
    owner = np.empty(len(train), np.int64)
    owner[np.argsort(_numpy(train.y), kind="stable")] = holder[_even_pieces(len(train), pieces)]
    return owner


def _natural(train: Split, devices: int | None, min_samples: int, seed: int) -> Partition:
    if train.users is None:
        without = {"natural", *(() if train.coarse is not None else ("coarse-balanced",))}
        without |= set() if train.labelled else set(NEED_CLASSES)
        possible = [k for k in PARTITIONS if k not in without]
        raise UserError(f"data.partition = 'natural': this data has no users; accepted: {', '.join(possible)}")
    users = _numpy(train.users)
    chosen = np.flatnonzero(np.bincount(users) >= max(min_samples, 1))
    if len(chosen) < (devices or 1):
        setting = "" if devices is None else f"data.devices = {devices}: "
        raise UserError(
            f"{setting}only {len(chosen)} users have data.min_samples = {min_samples} training samples or more"
        )
    if devices is not None:
        chosen = np.sort(rng(seed, "partition/natural").choice(chosen, devices, replace=False))
    device_of = np.full(int(users.max()) + 1, -1, np.int64)
    device_of[chosen] = np.arange(len(chosen))
    return _from_owners(device_of[users], len(chosen))


def _dirichlet(train: Split, devices: int, beta: float, min_samples: int, seed: int) -> Int:
    """Redraws the shares until every device has enough samples. A separate stream shuffles the samples, once."""
    setting = f"data.devices = {devices}, data.beta = {beta}, data.min_samples = {min_samples}"
    _require_samples(train, devices * min_samples, setting)
    y = _numpy(train.y)
    counts = np.bincount(y)
    draw = rng(seed, "partition/dirichlet")
    for _ in range(1 + MAX_REDRAWS):
        sizes = _dirichlet_sizes(counts, devices, beta, draw)
        if sizes is not None and sizes.sum(axis=0).min() >= min_samples:
            return _assign_classes(y, sizes, rng(seed, "partition/shuffle"))
    raise UserError(
        f"{setting}: no Dirichlet split of {len(y)} samples gave every device enough in {MAX_REDRAWS} redraws; "
        "use fewer devices, a larger beta or a smaller min_samples"
    )


def _dirichlet_sizes(counts: Int, devices: int, beta: float, draw: np.random.Generator) -> Int | None:
    """Samples of each class (rows) for each device (columns); None if a class has no share on a device with room."""
    sizes = np.zeros((len(counts), devices), np.int64)
    held = np.zeros(devices, np.int64)
    full = counts.sum() / devices
    for label, count in enumerate(counts.tolist()):
        share = draw.dirichlet(np.full(devices, beta)) * (held < full)
        cumulative = np.cumsum(share)
        if not cumulative[-1] > 0:
            return None
        cuts = (cumulative / cumulative[-1] * count).astype(np.int64)
        sizes[label] = np.diff(cuts, prepend=0)
        held += sizes[label]
    return sizes


def _assign_classes(y: Int, sizes: Int, shuffle: np.random.Generator) -> Int:
    """The device of each sample: each class is shuffled, then cut into ``sizes[class]``."""
    owner = np.empty(len(y), np.int64)
    order = np.argsort(y, kind="stable")
    for label, members in enumerate(np.split(order, np.cumsum(sizes.sum(axis=1))[:-1])):
        owner[shuffle.permutation(members)] = np.repeat(np.arange(sizes.shape[1]), sizes[label])
    return owner


def _coarse_balanced(train: Split, devices: int, beta: float, seed: int) -> Int:
    """Each coarse class is spread evenly over the devices (within one sample), with a different mix of fine classes."""
    if train.fine is None or train.coarse is None:
        raise UserError("data.partition = 'coarse-balanced': this data has one label level; use cifar100")
    _require_samples(train, devices, f"data.partition = 'coarse-balanced' with data.devices = {devices}")
    fine, coarse = _numpy(train.fine), _numpy(train.coarse)
    owner = np.empty(len(train), np.int64)
    draw, shuffle = rng(seed, "partition/coarse-balanced"), rng(seed, "partition/shuffle")
    order, first = draw.permutation(devices), 0
    for label in np.unique(coarse):
        members = np.flatnonzero(coarse == label)
        stock = np.unique(fine[members], return_inverse=True)[1]
        quota = np.full(devices, len(members) // devices)
        extra = len(members) % devices  # these rotate over the devices: total sizes differ by at most one, too
        quota[order[(first + np.arange(extra)) % devices]] += 1
        first += extra
        owner[members] = _assign_classes(stock, _fine_sizes(np.bincount(stock), quota, beta, draw), shuffle)
    return owner


def _fine_sizes(stock: Int, quota: Int, beta: float, draw: np.random.Generator) -> Int:
    """Samples of each fine class (rows) for each device (columns): columns sum to the quotas, rows to the stock.

    Devices choose in random order by Dirichlet preferences; once their preferred classes run out, from what is left.
    """
    sizes = np.zeros((len(stock), len(quota)), np.int64)
    preference = draw.dirichlet(np.full(len(stock), beta), size=len(quota))
    left = stock.copy()
    for device in draw.permutation(len(quota)):
        wanted = int(quota[device])
        while wanted:
            share = preference[device] * (left > 0)
            share = share / share.sum() if share.sum() > 0 else left / left.sum()
            taken = np.minimum(draw.multinomial(wanted, share), left)
            sizes[:, device] += taken
            left -= taken
            wanted -= int(taken.sum())
    return sizes


def _numpy(values: Any) -> Int:
    return np.asarray(values, dtype=np.int64)
