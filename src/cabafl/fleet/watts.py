"""What the simulated devices of an experiment draw."""

from cabafl.config import FleetSection
from cabafl.power import BOARDS, DEFAULT_POWER, Power


def fleet_power(section: FleetSection) -> Power:
    """What a device draws: the keys in watts, then the board, then the defaults."""
    board = DEFAULT_POWER if section.power is None else BOARDS[section.power]
    keys = section.compute_watts, section.radio_watts, section.idle_watts
    return Power(*(default if watts is None else watts for watts, default in zip(keys, board, strict=True)))


def tier_power(section: FleetSection, tier: str) -> Power:
    """What a device of a tier draws: the tier's watts, then the tier's board, then `fleet_power`."""
    board = BOARDS[section.tier_power[tier]] if tier in section.tier_power else fleet_power(section)
    return Power(
        section.tier_compute_watts.get(tier, board.compute),
        section.tier_radio_watts.get(tier, board.radio),
        section.tier_idle_watts.get(tier, board.idle),
    )
