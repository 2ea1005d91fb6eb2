"""The power of devices: `config` validates the names of the boards, `fleet` uses their watts."""

from typing import Literal, NamedTuple


class Power(NamedTuple):
    """What a whole device draws, in watts."""

    compute: float  # while it trains or computes its feature
    radio: float  # while it sends or receives
    idle: float  # the rest of the time


BoardName = Literal["jetson-nano", "raspberry-pi-3", "raspberry-pi-3b-plus", "raspberry-pi-4"]

DEFAULT_POWER = Power(15.0, 2.0, 0.0)
# docs/experiment-file.md names the sources, and says which figures are estimates.
BOARDS: dict[BoardName, Power] = {
    "jetson-nano": Power(10.0, 3.0, 2.0),
    "raspberry-pi-3": Power(3.7, 2.4, 1.4),
    "raspberry-pi-3b-plus": Power(5.1, 2.9, 1.9),
    "raspberry-pi-4": Power(6.4, 3.7, 2.7),
}
