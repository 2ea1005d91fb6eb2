"""The simulated devices: how long a job takes on each of them and what it costs in energy."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cabafl.rng import rng

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Mean and deviation, in seconds, of one whole job (training and transfer together).
TIERS: dict[str, tuple[float, float]] = {
    "excellent": (10.0, 1.0),
    "high": (15.0, 2.0),
    "medium": (20.0, 2.0),
    "low": (30.0, 3.0),
    "critical": (50.0, 5.0),
}
# Devices per tier, of 100, in the paper's four compositions.
CONFIGS: dict[str, tuple[int, int, int, int, int]] = {
    "config1": (40, 30, 10, 10, 10),
    "config2": (10, 10, 10, 30, 40),
    "config3": (10, 20, 40, 20, 10),
    "config4": (20, 20, 20, 20, 20),
}
SHORTEST_JOB = 1.0  # seconds of computing, however few samples a device has


@dataclass(frozen=True)
class Fleet:
    """One entry per device in every array; times in virtual seconds."""

    sizes: Ints
    compute_seconds: Floats  # of one job with the experiment's number of epochs
    link_seconds: Floats  # model to the device and back
    latency: float  # waiting that costs no energy
    answer_seconds: Floats  # forward passes of a feature collection
    compute_watts: Floats
    radio_watts: Floats
    tier: tuple[str, ...] = ()
    _seconds: "memoryview[float]" = field(init=False, repr=False, compare=False)  # of a usual job, for the hot path
    _joules: "memoryview[float]" = field(init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.sizes)

    def __post_init__(self) -> None:
        compute, link = self.compute_seconds, self.link_seconds
        object.__setattr__(self, "_seconds", (compute + link + self.latency).data)
        object.__setattr__(self, "_joules", (compute * self.compute_watts + link * self.radio_watts).data)

    def job(self, device: int, work: float = 1.0) -> tuple[float, float]:
        """Seconds from dispatch to upload and joules of one job; ``work`` is its share of the usual computing."""
        if work == 1.0:
            return self._seconds[device], self._joules[device]
        compute, link = self.compute_seconds.item(device) * work, self.link_seconds.item(device)
        joules = compute * self.compute_watts.item(device) + link * self.radio_watts.item(device)
        return compute + link + self.latency, joules

    def collection_seconds(self) -> Floats:
        """From the start of a feature collection to each device's answer."""
        return self.answer_seconds + self.link_seconds + self.latency

    def collection_joules(self, devices: Ints) -> float:
        """Energy some devices spend on a feature collection."""
        joules = self.answer_seconds * self.compute_watts
        joules += self.link_seconds * self.radio_watts
        return float((joules if len(devices) == len(joules) else joules[devices]).sum())


@dataclass(frozen=True)
class Speeds:
    """Seconds a device needs per sample: a Gaussian, cut off below ``floor``."""

    mean: float = 0.03
    deviation: float = 0.01
    floor: float = 0.01


def gaussian_fleet(
    sizes: Ints,
    seed: int,
    speeds: Speeds | None = None,
    *,
    link_seconds: float = 4.0,
    latency: float = 0.0,
    compute_watts: float = 15.0,
    radio_watts: float = 2.0,
) -> Fleet:
    """Seconds per sample drawn once per device; the number of epochs does not enter, as in the paper."""
    speeds = speeds or Speeds()
    per_sample = np.maximum(rng(seed, "speed").normal(speeds.mean, speeds.deviation, len(sizes)), speeds.floor)
    seconds = per_sample * sizes.astype(np.float64)
    return Fleet(
        sizes=sizes,
        compute_seconds=np.maximum(seconds, SHORTEST_JOB),
        link_seconds=np.full(len(sizes), link_seconds),
        latency=latency,
        answer_seconds=seconds,
        compute_watts=np.full(len(sizes), compute_watts),
        radio_watts=np.full(len(sizes), radio_watts),
    )


def tiered_fleet(
    sizes: Ints,
    seed: int,
    counts: Mapping[str, int],
    *,
    link_seconds: float = 4.0,
    latency: float = 0.0,
    compute_watts: Mapping[str, float],
    radio_watts: Mapping[str, float],
) -> Fleet:
    """Quality tiers dealt to the devices at random. A tier's time is that of a whole job: no link time is added, but
    ``link_seconds`` of it are spent on the link, which decides how much of the energy is the radio's."""
    names = [name for name in TIERS for _ in range(counts.get(name, 0))]
    if len(names) != len(sizes):
        raise ValueError(f"fleet.tiers: the counts add up to {len(names)}, not to the {len(sizes)} devices")
    order = rng(seed, "tiers").permutation(len(names))
    tier = tuple(names[i] for i in order)
    mean, deviation = np.array([TIERS[name] for name in tier]).T
    seconds = np.maximum(rng(seed, "speed").normal(mean, deviation), SHORTEST_JOB)
    link = np.minimum(link_seconds, seconds)
    return Fleet(
        sizes=sizes,
        compute_seconds=seconds - link,
        link_seconds=link,
        latency=latency,
        answer_seconds=seconds - link,
        compute_watts=np.array([compute_watts[name] for name in tier]),
        radio_watts=np.array([radio_watts[name] for name in tier]),
        tier=tier,
    )


def config_counts(config: str, devices: int) -> dict[str, int]:
    """A composition of the paper, given for 100 devices, scaled to any number (largest remainders first)."""
    exact = np.array(CONFIGS[config]) * devices / 100
    counts = np.floor(exact).astype(int)
    missing = devices - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return dict(zip(TIERS, counts.tolist(), strict=True))
