"""Who the devices are."""

from cabafl.fleet.devices import CONFIGS, TIERS, Fleet, config_counts, gaussian_fleet, tiered_fleet

__all__ = ["CONFIGS", "TIERS", "Fleet", "config_counts", "gaussian_fleet", "tiered_fleet"]
