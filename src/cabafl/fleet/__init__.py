"""The simulated devices: speeds, links, energy and faults."""

from cabafl.fleet.attacks import Attack
from cabafl.fleet.devices import Fleet, Speeds, config_counts, gaussian_fleet, tiered_fleet
from cabafl.fleet.faults import FINE, Absence, Fate, Faults, read_trace
from cabafl.power import Power
from cabafl.tiers import TIERS

__all__ = [
    "FINE",
    "TIERS",
    "Absence",
    "Attack",
    "Fate",
    "Faults",
    "Fleet",
    "Power",
    "Speeds",
    "config_counts",
    "gaussian_fleet",
    "read_trace",
    "tiered_fleet",
]
