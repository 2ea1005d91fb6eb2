"""Which device holds which training samples."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cabafl.data.dataset import Split
from cabafl.errors import UserError
from cabafl.rng import rng

Int = NDArray[np.int64]
KINDS = ("iid", "dirichlet", "natural", "shards", "coarse-balanced")
DEFAULT_DEVICES = 100
REDRAWS = 1000


@dataclass(frozen=True)
class Partition:
    """Device k holds the samples ``indices[offsets[k]:offsets[k + 1]]``: two arrays, whatever the number of devices."""

    indices: Int
    offsets: Int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Int:
        """Samples per device."""
        return np.diff(self.offsets)

    def device(self, k: int) -> Int:
        """Device k's sample numbers, ascending."""
        if not 0 <= k < len(self):
            raise IndexError(f"device {k} of {len(self)}")
        return self.indices[self.offsets[k] : self.offsets[k + 1]]


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
    """Deals the training samples out; ``devices`` None means 100, or every user for the natural partition.

    ``beta`` shapes dirichlet and coarse-balanced, ``min_samples`` dirichlet and natural, ``shards`` the shards.
    """
    if devices is not None and devices < 1:
        raise UserError(f"data.devices = {devices}: at least 1 device is needed")
    if not 0 < beta < np.inf:
        raise UserError(f"data.beta = {beta}: a positive number is needed")
    if kind == "natural":
        return _natural(train, devices, min_samples, seed)
    n = DEFAULT_DEVICES if devices is None else devices
    deal: dict[str, Callable[[], Int]] = {
        "iid": lambda: _iid(train, n, seed),
        "dirichlet": lambda: _dirichlet(train, n, beta, min_samples, seed),
        "shards": lambda: _shards(train, n, shards, seed),
        "coarse-balanced": lambda: _coarse_balanced(train, n, beta, seed),
    }
    if kind not in deal:
        near = get_close_matches(kind, KINDS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"data.partition = {kind!r} is unknown; {hint}accepted: {', '.join(KINDS)}")
    return _from_owners(deal[kind](), n)


def _from_owners(owner: Int, devices: int) -> Partition:
    """The partition in which sample i belongs to device owner[i]; a negative owner leaves the sample out."""
    indices = np.argsort(owner, kind="stable")[np.count_nonzero(owner < 0) :]
    counts = np.bincount(owner[owner >= 0], minlength=devices)
    return Partition(indices.astype(np.int64), np.concatenate(([0], np.cumsum(counts))).astype(np.int64))


def _even_pieces(n: int, pieces: int) -> Int:
    """The piece of each of n positions when they are cut into pieces whose sizes differ by at most one."""
    return np.repeat(np.arange(pieces), n // pieces + (np.arange(pieces) < n % pieces))


def _at_most(train: Split, needed: int, what: str) -> None:
    if needed > len(train):
        raise UserError(f"{what} needs {needed} training samples, there are {len(train)}")


def _iid(train: Split, devices: int, seed: int) -> Int:
    _at_most(train, devices, f"data.partition = 'iid' with data.devices = {devices}")
    owner = np.empty(len(train), np.int64)
    owner[rng(seed, "partition/iid").permutation(len(train))] = _even_pieces(len(train), devices)
    return owner


def _shards(train: Split, devices: int, shards: int, seed: int) -> Int:
    """Samples sorted by label are cut into pieces, and each device is dealt ``shards`` of them at random."""
    if shards < 1:
        raise UserError(f"data.shards = {shards}: at least 1 shard per device is needed")
    pieces = devices * shards
    _at_most(train, pieces, f"data.partition = 'shards' with data.devices = {devices} and {shards} shards each")
    holder = np.empty(pieces, np.int64)
    holder[rng(seed, "partition/shards").permutation(pieces)] = np.arange(pieces) // shards
    owner = np.empty(len(train), np.int64)
    owner[np.argsort(_numpy(train.y), kind="stable")] = holder[_even_pieces(len(train), pieces)]
    return owner


def _natural(train: Split, devices: int | None, min_samples: int, seed: int) -> Partition:
    if train.users is None:
        possible = [k for k in KINDS if k != "natural" and (k != "coarse-balanced" or train.coarse is not None)]
        raise UserError(f"data.partition = 'natural': this data has no users; possible: {', '.join(possible)}")
    users = _numpy(train.users)
    chosen = np.flatnonzero(np.bincount(users) >= max(min_samples, 1))
    if len(chosen) < (devices or 1):
        asked = "" if devices is None else f"data.devices = {devices}: "
        raise UserError(
            f"{asked}only {len(chosen)} users have data.min_samples = {min_samples} training samples or more"
        )
    if devices is not None:
        chosen = np.sort(rng(seed, "partition/natural").choice(chosen, devices, replace=False))
    device_of = np.full(int(users.max()) + 1, -1, np.int64)
    device_of[chosen] = np.arange(len(chosen))
    return _from_owners(device_of[users], len(chosen))


def _dirichlet(train: Split, devices: int, beta: float, min_samples: int, seed: int) -> Int:
    """Redraws the shares until every device has enough; the samples are shuffled once, by a stream of their own."""
    asked = f"data.devices = {devices}, data.beta = {beta}, data.min_samples = {min_samples}"
    _at_most(train, devices * min_samples, asked)
    y = _numpy(train.y)
    counts = np.bincount(y)
    draw = rng(seed, "partition/dirichlet")
    for _ in range(1 + REDRAWS):
        sizes = _dirichlet_sizes(counts, devices, beta, draw)
        if sizes is not None and sizes.sum(axis=0).min() >= min_samples:
            return _deal_classes(y, sizes, rng(seed, "partition/shuffle"))
    raise UserError(
        f"{asked}: no Dirichlet split of {len(y)} samples gave every device enough in {REDRAWS} redraws; "
        "take fewer devices, a larger beta or a smaller min_samples"
    )


def _dirichlet_sizes(counts: Int, devices: int, beta: float, draw: np.random.Generator) -> Int | None:
    """Samples of each class (rows) for each device (columns); None when all shares fell on devices that are full."""
    sizes = np.zeros((len(counts), devices), np.int64)
    held = np.zeros(devices, np.int64)
    full = counts.sum() / devices
    for label, count in enumerate(counts.tolist()):
        share = draw.dirichlet(np.full(devices, beta)) * (held < full)
        cumulated = np.cumsum(share)
        if not cumulated[-1] > 0:
            return None
        cuts = (cumulated / cumulated[-1] * count).astype(np.int64)
        sizes[label] = np.diff(cuts, prepend=0)
        held += sizes[label]
    return sizes


def _deal_classes(y: Int, sizes: Int, shuffle: np.random.Generator) -> Int:
    """Each class in random order, cut at the given sizes."""
    owner = np.empty(len(y), np.int64)
    order = np.argsort(y, kind="stable")
    for label, members in enumerate(np.split(order, np.cumsum(sizes.sum(axis=1))[:-1])):
        owner[shuffle.permutation(members)] = np.repeat(np.arange(sizes.shape[1]), sizes[label])
    return owner


def _coarse_balanced(train: Split, devices: int, beta: float, seed: int) -> Int:
    """Every device has the same number of each coarse class, give or take one, but its own mix of fine classes."""
    if train.fine is None or train.coarse is None:
        raise UserError("data.partition = 'coarse-balanced': this data has one label level; take cifar100")
    _at_most(train, devices, f"data.partition = 'coarse-balanced' with data.devices = {devices}")
    fine, coarse = _numpy(train.fine), _numpy(train.coarse)
    owner = np.empty(len(train), np.int64)
    draw, shuffle = rng(seed, "partition/coarse-balanced"), rng(seed, "partition/shuffle")
    order, first = draw.permutation(devices), 0
    for label in np.unique(coarse):
        members = np.flatnonzero(coarse == label)
        stock = np.unique(fine[members], return_inverse=True)[1]
        quota = np.full(devices, len(members) // devices)
        extra = len(members) % devices  # the odd samples go round, so that device sizes stay within one too
        quota[order[(first + np.arange(extra)) % devices]] += 1
        first += extra
        owner[members] = _deal_classes(stock, _fine_sizes(np.bincount(stock), quota, beta, draw), shuffle)
    return owner


def _fine_sizes(stock: Int, quota: Int, beta: float, draw: np.random.Generator) -> Int:
    """Samples of each fine class (rows) for each device (columns): columns add up to the quotas, rows to the stock.

    Devices choose in random order by Dirichlet preferences, as long as what they prefer lasts.
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
