"""What a run folder says about its run: the experiment and the environment. Anything may be missing or wrong."""

import tomllib
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
import orjson

from cabafl.config import Experiment
from cabafl.errors import UserError
from cabafl.fleet import TIERS, Faults, config_counts, tiered_fleet
from cabafl.fleet.watts import fleet_power, tier_power
from cabafl.recording.folder import ENVIRONMENT, EXPERIMENT
from cabafl.recording.scale import ACCURACY, MetricInfo, metric_info
from cabafl.toml import flatten
from cabafl.validation import validated
from cabafl.watch.columns import Array
from cabafl.watch.jobs import MOST_DEVICES, MOST_SLOTS
from cabafl.watch.places import LARGEST_FILE, Place

USUAL_DEVICES = 100  # data.devices = auto, unless the data have users
LARGEST_TOML = 1 << 20  # bytes
LARGEST_JSON = 4 << 20  # bytes; environment and summary stay in memory
NO_TIER = 255


@dataclass(frozen=True)
class RunFacts:
    """Settings and environment as plain data, and what follows from them."""

    settings: dict[str, Any] = field(default_factory=dict)  # by section.key
    environment: dict[str, Any] = field(default_factory=dict)
    experiment: Experiment | None = None  # None: of another version, or damaged
    problem: str = ""

    @classmethod
    def read(cls, place: Place) -> "RunFacts":
        """Of the folder as it is now."""
        text, about = place.read(EXPERIMENT, LARGEST_TOML), read_json(place, ENVIRONMENT, LARGEST_JSON)
        try:
            values = tomllib.loads((text or b"").decode())
            orjson.dumps(values)  # refuses whole numbers beyond 64 bits, and tables too deep to be shown
        except (ValueError, TypeError, RecursionError):
            return cls({}, about or {}, None, f"{EXPERIMENT}: not a TOML file")
        try:
            experiment = validated(Experiment, values)
        except UserError:
            experiment = None
        return cls(flatten(values), about or {}, experiment, "" if text else f"{EXPERIMENT}: cannot be read")

    def _text(self, key: str) -> str:
        return str(self.settings.get(key, ""))[:200]

    @property
    def method(self) -> str:
        """The method's name; of a class of the user's, the whole of it."""
        return self._text("method.name")

    @property
    def clock(self) -> str:
        """virtual or wall."""
        return "wall" if self.environment.get("clock") == "wall" else "virtual"

    @property
    def started(self) -> float | None:
        """Seconds since 1970."""
        try:
            return datetime.fromisoformat(str(self.environment.get("started"))).timestamp()
        except (ValueError, OverflowError, OSError):
            return None

    @property
    def metric(self) -> MetricInfo:
        """What the run is judged by."""
        try:
            return metric_info(self.environment.get("metric"))
        except (ValueError, TypeError):
            return ACCURACY

    def number(self, key: str) -> float | None:
        """A setting that is a positive number; else None."""
        value = self.settings.get(key)
        return float(value) if isinstance(value, int | float) and 0 < value < 1e300 else None

    @property
    def end(self) -> float | None:
        """Where the run ends on its clock."""
        return self.number("run.wall_time" if self.clock == "wall" else "run.virtual_time")

    @property
    def devices(self) -> int:
        """The number of devices as far as the settings tell; there may be more."""
        devices = self.number("data.devices")
        if devices is not None:
            return int(min(devices, MOST_DEVICES))
        return 0 if self.settings.get("data.partition") == "natural" else USUAL_DEVICES

    @property
    def slots(self) -> int | None:
        """How many devices train at the same time."""
        slots, share = self.number("fleet.slots"), self.number("fleet.participation")
        if slots is None and share is not None and self.devices:
            slots = max(1, int(share * self.devices + 1e-9))
        return None if slots is None else int(min(slots, MOST_SLOTS))

    def described(self) -> dict[str, Any]:
        """The part of the overview that comes from here."""
        return {
            "method": self.method,
            "dataset": self._text("data.dataset"),
            "model": self._text("model.name"),
            "seed": seed if isinstance(seed := self.settings.get("seed"), int) else None,
            "devices": self.devices,
            "slots": self.slots,
            "clock": self.clock,
            "started": self.started,
            "end": self.end,
            "metric": self.metric.described(),
        }

    # The simulated fleet

    @cached_property
    def tier_of(self) -> Array:
        """The tier of each simulated device, as its place in `TIERS`; empty without tiers."""
        experiment = self.experiment
        if experiment is None or self.clock == "wall" or experiment.fleet.tiers is None:
            return np.empty(0, dtype=np.uint8)
        section, sizes = experiment.fleet, np.ones(self.devices, dtype=np.int64)
        assert section.tiers is not None
        counts = config_counts(section.tiers, len(sizes)) if isinstance(section.tiers, str) else section.tiers
        try:
            power = {tier: tier_power(section, tier) for tier in TIERS}
            fleet = tiered_fleet(sizes, experiment.seed, counts, power=power)
        except ValueError:
            return np.empty(0, dtype=np.uint8)
        places = {tier: place for place, tier in enumerate(TIERS)}
        return np.array([places[tier] for tier in fleet.tier], dtype=np.uint8)

    @property
    def tiers(self) -> list[str]:
        """The names of the tiers; empty without tiers."""
        return list(TIERS) if len(self.tier_of) else []

    def joules(self, device: Array, seconds: Array, model_bytes: float | None) -> Array | None:
        """Energy of jobs of simulated devices that took so long, dispatch to upload; None if that cannot be known."""
        experiment = self.experiment
        if experiment is None or self.clock == "wall":
            return None
        section, tiers = experiment.fleet, self.tier_of
        link = section.link_seconds
        if section.bandwidth_mbps is not None:
            if model_bytes is None:
                return None
            link = 2 * 8 * model_bytes / (section.bandwidth_mbps * 1e6)
        if len(tiers):
            power = np.array([tier_power(section, tier)[:2] for tier in TIERS])
            code = tiers[np.minimum(device, len(tiers) - 1)]
            compute, radio = power[code, 0], power[code, 1]
        else:
            compute, radio, _ = fleet_power(section)
        on_air = np.minimum(link, seconds)
        computing: Array = np.maximum(seconds - on_air - section.extra_latency, 0.0)
        return np.asarray(computing * compute + on_air * radio)

    @cached_property
    def faults(self) -> Faults | None:
        """When simulated devices are away, if that follows from the seed; a trace is a file elsewhere, which is not
        read."""
        experiment = self.experiment
        if experiment is None or self.clock == "wall":
            return None
        section = experiment.fleet.faults
        if section.trace is not None or section.present_seconds is None:
            return None
        return Faults(experiment.seed, present_seconds=section.present_seconds, absent_seconds=section.absent_seconds)


def read_json(place: Place, name: str, limit: int = LARGEST_FILE) -> dict[str, Any] | None:
    """A JSON object in a file; None if there is none, or the file is larger than ``limit``."""
    try:
        found = orjson.loads(place.read(name, limit) or b"")
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
