"""Simulated liars: a share of the devices that do not do what the server asks for.

Who attacks follows from the seed, and a larger share contains the smaller one. What an attacker uploads follows from
the seed, the job's number and the honest result.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cabafl.names import AttackName
from cabafl.rng import Stream, rng, seed64

Floats32 = npt.NDArray[np.float32]
STRENGTHS: dict[AttackName, float] = {
    "sign-flip": 4.0,
    "noise": 10.0,
    "scale": 10.0,
    "label-flip": 1.0,
    "claim": 1000.0,
}


@dataclass(frozen=True)
class Attack:
    """What the attackers among ``devices`` devices do."""

    kind: AttackName
    share: float
    strength: float
    devices: int
    seed: int

    @cached_property
    def attackers(self) -> frozenset[int]:
        """The devices that attack."""
        count = round(self.share * self.devices)
        return frozenset(Stream(seed64(self.seed, "attackers")).distinct(self.devices, count))

    @cached_property
    def flips_labels(self) -> frozenset[int]:
        """The devices whose labels y are C - 1 - y, with C classes."""
        return self.attackers if self.kind == "label-flip" else frozenset()

    def claims(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The number of samples that each device claims to have."""
        if self.kind != "claim" or not self.attackers:
            return sizes
        claimed = sizes.copy()
        liars = sorted(self.attackers)
        claimed[liars] = np.minimum(np.ceil(self.strength * sizes[liars]), 2.0**53).astype(np.int64)
        return claimed

    def upload(self, job: int, device: int, sent: Floats32, trained: Floats32) -> Floats32:
        """What the device uploads after an honest training from ``sent`` to ``trained``."""
        if device not in self.attackers or self.kind in ("label-flip", "claim"):
            return trained
        update = trained.astype(np.float64) - sent
        if self.kind == "noise":
            noise = rng(self.seed, "attack noise", job).standard_normal(update.size)
            lengths = math.sqrt((update * update).sum()), math.sqrt((noise * noise).sum())
            update = noise * (self.strength * lengths[0] / max(lengths[1], 1e-300))
        else:
            update *= -self.strength if self.kind == "sign-flip" else self.strength
        with np.errstate(over="ignore"):  # such an upload is rejected
            return (sent + update).astype(np.float32)
