"""The simulated devices: how long a job takes on each one and how much energy it costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cabafl.errors import UserError
from cabafl.power import DEFAULT_POWER, Power
from cabafl.rng import rng
from cabafl.tiers import CONFIGS, TIERS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SHORTEST_JOB = 1.0  # seconds: a lower bound, even for a device with one sample
LONGEST_JOB = 1e15  # seconds: thirty million years; so that times are always finite, however slow a fleet is
ANSWER_SHARE = 1 / 15  # of a job's computing time: a third of one of 5 epochs


@dataclass(frozen=True)
class Fleet:
    """Every array has one entry per device; times are virtual seconds."""

    sizes: Ints  # training samples
    compute_seconds: Floats  # of one job with the experiment's number of epochs
    link_seconds: Floats  # model to the device and back
    latency: float  # waiting time per job; costs idle power only
    answer_seconds: Floats  # computing time of one feature collection: a forward pass over the samples
    compute_watts: Floats
    radio_watts: Floats
    idle_watts: Floats
    tier: tuple[str, ...] = ()
    most_passes: Floats | None = None  # over the samples, in a job; None: all of its epochs
    # Of a full job, precomputed, because every dispatch reads them (4 % of an event, `cabafl bench engine`).
    full_seconds: "memoryview[float]" = field(init=False, repr=False, compare=False)
    full_joules: "memoryview[float]" = field(init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.sizes)

    def __post_init__(self) -> None:
        compute, link = self.compute_seconds, self.link_seconds
        seconds = compute + link + self.latency
        for device in np.flatnonzero(~(seconds <= LONGEST_JOB))[:1].tolist():
            raise UserError(
                f"fleet: a job of device {device} takes {seconds[device]} s; accepted: {LONGEST_JOB:g} or less"
            )
        object.__setattr__(self, "full_seconds", seconds.data)
        object.__setattr__(self, "full_joules", (compute * self.compute_watts + link * self.radio_watts).data)

    def job(self, device: int, work: float = 1.0, models: int = 2) -> tuple[float, float]:
        """Seconds from dispatch to upload, and joules, of one job; ``work`` scales its computing time. ``models``: how
        many vectors of a model's length travel, down and up."""
        if work == 1.0 and models == 2:
            return self.full_seconds[device], self.full_joules[device]
        compute, link = self.compute_seconds.item(device) * work, self.link_seconds.item(device) * models / 2
        joules = compute * self.compute_watts.item(device) + link * self.radio_watts.item(device)
        return compute + link + self.latency, joules

    def passes(self, device: int, epochs: int) -> float:
        """Passes over its samples that a job of so many epochs makes."""
        return epochs if self.most_passes is None else min(epochs, self.most_passes.item(device))

    def transfer(self, device: int) -> tuple[float, float]:
        """Seconds and joules of one model that travels one way. A job begins with its latency and ends with these."""
        seconds = self.link_seconds.item(device) / 2
        return seconds, seconds * self.radio_watts.item(device)

    def collection_seconds(self) -> Floats:
        """Seconds from the start of a feature collection to each device's answer."""
        return self.answer_seconds + self.link_seconds + self.latency

    def collection_joules(self, devices: Ints) -> float:
        """Joules that ``devices`` spend together on a feature collection."""
        joules = self.answer_seconds * self.compute_watts
        joules += self.link_seconds * self.radio_watts
        return float((joules if len(devices) == len(joules) else joules[devices]).sum())

    def collection_idle_joules(self, devices: Ints) -> float:
        """Joules that idle power would take in the time ``devices`` compute and transfer for a feature collection."""
        return float((self.idle_watts * (self.answer_seconds + self.link_seconds))[devices].sum())


@dataclass(frozen=True)
class Speeds:
    """Distribution of the seconds per sample: Gaussian, clipped from below at ``floor``."""

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
    answer_share: float = ANSWER_SHARE,
    power: Power = DEFAULT_POWER,
) -> Fleet:
    """Draws each device's seconds per sample once. As in the paper, job times do not depend on the number of epochs.

    ``answer_share`` of a job's computing time is that of a feature collection.
    """
    speeds = speeds or Speeds()
    per_sample = np.maximum(rng(seed, "speed").normal(speeds.mean, speeds.deviation, len(sizes)), speeds.floor)
    seconds = per_sample * sizes.astype(np.float64)
    return Fleet(
        sizes=sizes,
        compute_seconds=np.maximum(seconds, SHORTEST_JOB),
        link_seconds=np.full(len(sizes), link_seconds),
        latency=latency,
        answer_seconds=seconds * answer_share,
        compute_watts=np.full(len(sizes), power.compute),
        radio_watts=np.full(len(sizes), power.radio),
        idle_watts=np.full(len(sizes), power.idle),
    )


def tiered_fleet(
    sizes: Ints,
    seed: int,
    counts: Mapping[str, int],
    *,
    link_seconds: float = 4.0,
    latency: float = 0.0,
    answer_share: float = ANSWER_SHARE,
    power: Mapping[str, Power],
) -> Fleet:
    """Assigns quality tiers to the devices at random; ``power`` is by tier.

    A tier's time is that of a whole job. ``link_seconds`` of it count as transfer, which sets the radio's share of the
    energy; no link time is added. A feature collection takes ``answer_share`` of the rest, and the transfer.
    """
    names = [name for name in TIERS for _ in range(counts.get(name, 0))]
    if len(names) != len(sizes):
        raise ValueError(f"fleet.tiers: the counts add up to {len(names)}; accepted: {len(sizes)} (data.devices)")
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
        answer_seconds=(seconds - link) * answer_share,
        compute_watts=np.array([power[name].compute for name in tier]),
        radio_watts=np.array([power[name].radio for name in tier]),
        idle_watts=np.array([power[name].idle for name in tier]),
        tier=tier,
    )


def config_counts(config: str, devices: int) -> dict[str, int]:
    """Devices per tier: a composition of the paper scaled from 100 to ``devices`` by largest remainders."""
    exact = np.array(CONFIGS[config]) * devices / 100
    counts = np.floor(exact).astype(int)
    missing = devices - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return dict(zip(TIERS, counts.tolist(), strict=True))
