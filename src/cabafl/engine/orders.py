"""What the engine on the wall clock wants to be sent to devices, and what it has planned for later."""

from dataclasses import dataclass
from enum import IntEnum

from cabafl.methods.base import FeatureKind, Ints, Weights
from cabafl.state import State


@dataclass(frozen=True)
class Question(State):
    """A feature collection under way."""

    weights: Weights
    kind: FeatureKind
    asked: Ints  # devices
    until: float  # devices that have not answered by then are left out


@dataclass(frozen=True)
class Orders:
    """What the method has ordered since the last `WallEngine.take_orders`."""

    jobs: list[int]  # to send
    ask: bool  # whether to send the feature query
    cancelled: list[tuple[int, int]]  # (job, device): the device need not go on with it


class Alarm(IntEnum):
    """What happens at a scheduled time of the wall clock."""

    TIMER = 1  # set by the method
    EVALUATE = 2
    REST = 3  # a device has rested
