"""Settings that tune themselves: rules for k, alpha, gamma, sigma and m in place of numbers.

The rules use what the server knows anyway, the feature F_j and the number of samples n_j of every device j, and no
labels. With f_g, the sum of all features:

    d_j = 1 - cos(F_j, f_g)        dissimilarity of a device
    d   = median of d_j            of a typical device
    q   = median of 2 n_j d_j      skew: about 1 if devices hold random samples, more if each holds another kind
    r   = min(1, 1 / sqrt(q))      evenness of the devices: 1 for an IID split, towards 0 for a skewed one

    alpha = (1 + r) / 2            size is evidence only as far as samples are alike
    gamma = 0.3 (1 - r)            there is something to screen only if devices differ
    sigma = 3 - 2 r                on the relative scale: the choice needs freedom only if devices differ
    k                              a model is aggregated when its trace is as balanced as fifty random devices
    m                              doubles if a collection ranks the devices much as the one before, halves if not

docs/cabafl.md gives the reasons and the values on real splits. Medians, because devices may lie about both numbers.
"""

import math
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator

from cabafl.methods.base import Floats, Ints, Server
from cabafl.methods.cabafl.selector import FeatureTable, dot
from cabafl.state import State

NAMES = ("k", "alpha", "gamma", "sigma", "m")
START: dict[str, Any] = {"k": 10, "m": 50, **dict.fromkeys(("alpha", "gamma", "sigma"), math.nan)}
# NaN: the first collection decides, before it is used
BALANCE = 50  # a trace is complete when it is this many times as balanced as a typical device
SHORTEST, LONGEST = 2, 20  # trainings of a cycle
CYCLES = 10  # about this many cycles make up the mean length
FEWEST, MOST = 10, 400  # aggregations between two collections
STABLE, CHANGED = 0.8, 0.5  # agreement of two collections from which m doubles, below which it halves


def _auto_or_count(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError("accepted: 'auto' or a whole number from 1")


def _auto_or_share(value: Any) -> Any:
    return _auto_or_number(value, 1.0, "from 0 to 1")


def _auto_or_level(value: Any) -> Any:
    return _auto_or_number(value, math.inf, "from 0")


def _auto_or_number(value: Any, most: float, accepted: str) -> Any:
    if value == "auto":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most:
        return float(value)
    raise ValueError(f"accepted: 'auto' or a number {accepted}")


CountOrAuto = Annotated[Literal["auto"] | int, BeforeValidator(_auto_or_count)]
ShareOrAuto = Annotated[Literal["auto"] | float, BeforeValidator(_auto_or_share)]
LevelOrAuto = Annotated[Literal["auto"] | float, BeforeValidator(_auto_or_level)]


class FeatureSpread(NamedTuple):
    """What the rules read from a feature table."""

    devices: Floats  # d_j, shape (devices,); NaN for a device whose feature is unknown
    typical: float  # d
    evenness: float  # r


def measure(features: FeatureTable, sizes: Ints) -> FeatureSpread:
    """d_j, d and r. If no device is known, the devices count as even.

    Only inner products that the table keeps anyway: no pass over its rows.
    """
    norm = math.sqrt(dot(features.total, features.total))
    known = (features.squares > 0) & (sizes > 0)
    devices = np.full(len(sizes), np.nan)
    if norm > 0:
        devices[known] = np.maximum(1.0 - features.products[known] / (norm * np.sqrt(features.squares[known])), 0.0)
    known = ~np.isnan(devices)
    if not known.any():
        return FeatureSpread(devices, 0.0, 1.0)
    skew = float(np.median(2.0 * sizes[known] * devices[known]))
    return FeatureSpread(devices, float(np.median(devices[known])), 1.0 / math.sqrt(max(skew, 1.0)))


def agreement(before: Floats, now: Floats) -> float | None:
    """Rank correlation (Spearman) of two collections over the devices known in both; None if they are fewer than 3."""
    both = ~np.isnan(before) & ~np.isnan(now)
    n = int(both.sum())
    if n < 3:
        return None
    differences = _ranks(before[both]) - _ranks(now[both])
    return 1.0 - 6.0 * int((differences * differences).sum()) / (n * (n * n - 1))


def _ranks(values: Floats) -> Ints:
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks


class Tuning(State):
    """The five settings as they are now: the numbers given, or what the rules have decided so far.

    Args:
        given: A number, which stays, or "auto" for each of `NAMES`.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.auto = [name for name in NAMES if given[name] == "auto"]
        now = {name: START[name] if name in self.auto else given[name] for name in NAMES}
        self.k: int = now["k"]
        self.alpha: float = now["alpha"]
        self.gamma: float = now["gamma"]
        self.sigma: float = now["sigma"]
        self.m: int = now["m"]
        self.typical = 0.0  # d
        self.devices = np.zeros(0)  # d_j
        self.cycle = float(self.k)  # mean length of recent cycles

    def complete(self, trained: int, dissimilarity: float, floor: float) -> bool:
        """Whether a model is aggregated after so many trainings; dissimilarities below ``floor`` count as equal."""
        if "k" not in self.auto:
            return trained == self.k
        balanced = dissimilarity <= max(self.typical / BALANCE, floor)
        return trained >= LONGEST or (trained >= SHORTEST and balanced)

    def on_cycle(self, server: Server, length: int) -> None:
        """Keeps ``k`` at the mean length of recent cycles: what "half of a cycle" means to the cache."""
        if "k" in self.auto:
            self.cycle += (length - self.cycle) / CYCLES
            self._decide(server, "k", round(self.cycle), self.cycle)

    def on_features(self, server: Server, features: FeatureTable) -> None:
        """Decides alpha, gamma, sigma and m anew."""
        if not self.auto:
            return
        before = self.devices
        self.devices, self.typical, r = measure(features, server.sizes)
        self._decide(server, "alpha", (1 + r) / 2, r)
        self._decide(server, "gamma", 0.3 * (1 - r), r)
        self._decide(server, "sigma", 3 - 2 * r, r)
        agreed = agreement(before, self.devices) if len(before) else None
        if agreed is not None and agreed >= STABLE:
            self._decide(server, "m", min(2 * self.m, MOST), agreed)
        elif agreed is not None and agreed < CHANGED:
            self._decide(server, "m", max(self.m // 2, FEWEST), agreed)

    def _decide(self, server: Server, setting: str, value: float, measured: float) -> None:
        if setting in self.auto and value != getattr(self, setting):
            setattr(self, setting, value)
            server.note("auto", setting=setting, value=value, measured=measured)
