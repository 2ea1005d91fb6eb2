"""Who the devices are."""

from cabafl.fleet.devices import CONFIGS, TIERS, Fleet, Speeds, config_counts, gaussian_fleet, tiered_fleet
from cabafl.fleet.faults import FINE, Absence, Fate, Faults, read_trace

__all__ = [
    "CONFIGS",
    "FINE",
    "TIERS",
    "Absence",
    "Fate",
    "Faults",
    "Fleet",
    "Speeds",
    "config_counts",
    "gaussian_fleet",
    "read_trace",
    "tiered_fleet",
]
