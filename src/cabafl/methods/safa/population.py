"""Which devices SAFA trains, and whose cache entries enter the mean.

`AllDevices` is the paper's protocol. `SlotDevices` trains K of N devices at a time, which the paper does not cover.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

from cabafl.methods.base import Server, Weights
from cabafl.methods.slots import check_at_most, default_buffer
from cabafl.state import State


@dataclass(slots=True)
class Round(State):
    """One round. Number 0 is the preparation of the cache, before the first round."""

    number: int = 0  # t
    picked: dict[int, Weights] = field(default_factory=dict)  # P(t), uploads by device in arrival order
    undrafted: dict[int, Weights] = field(default_factory=dict)  # Q(t), likewise
    deprecated: list[int] = field(default_factory=list)
    closing: bool = False  # complete; ends after all uploads that arrive at this instant

    def heard(self) -> list[int]:
        """Devices that have uploaded in this round."""
        return [*self.picked, *self.undrafted]


class Population(State, ABC):
    """What differs between the populations. The methods that return devices name idle ones that start training now."""

    def check(self, quota: int | None, slots: int) -> None:
        """Raises ValueError if ``quota`` uploads can never arrive in a round."""

    @abstractmethod
    def default_quota(self, server: Server) -> int:
        """Uploads picked per round, if the experiment does not say."""

    @abstractmethod
    def concurrency(self, server: Server) -> int:
        """How many devices train at the same time."""

    @abstractmethod
    def at_start(self, server: Server, current: Round, training: set[int]) -> list[int]:
        """Devices that join at the start of a round, while ``training`` continue."""

    @abstractmethod
    def after_loss(self, server: Server, current: Round, training: set[int]) -> list[int]:
        """Devices that join in place of a lost job."""

    @abstractmethod
    def after_return(self, server: Server, current: Round, training: set[int], device: int) -> list[int]:
        """Devices that join because ``device`` became idle."""

    @abstractmethod
    def version(self, committed: dict[int, int], device: int) -> float:
        """v_k of a device that joins."""

    def force(self, committed: dict[int, int], device: int, version: int) -> None:
        """Records that a deprecated device starts from the global model of ``version``."""

    @abstractmethod
    def members(self, server: Server, current: Round, training: set[int], bypassed: list[int]) -> set[int]:
        """Devices whose cache entries enter the mean. ``bypassed`` is Q(t-1)."""

    @abstractmethod
    def facts(self, devices: list[int], weights: list[float]) -> dict[str, Any]:
        """What the record says about the mean."""


class AllDevices(Population):
    """All devices train all the time; W(t) is the mean over the whole cache."""

    def default_quota(self, server: Server) -> int:
        """K."""
        return server.slots

    def concurrency(self, server: Server) -> int:
        """N."""
        return len(server.sizes)

    def at_start(self, server: Server, current: Round, training: set[int]) -> list[int]:
        """Every device that is not training."""
        return sorted(server.idle)

    def after_loss(self, server: Server, current: Round, training: set[int]) -> list[int]:
        """None: a device that crashed starts again with the next round."""
        return []

    def after_return(self, server: Server, current: Round, training: set[int], device: int) -> list[int]:
        """The device itself, unless it has uploaded in this round."""
        return [] if device in current.heard() else [device]

    def version(self, committed: dict[int, int], device: int) -> float:
        """The last round it uploaded in or was forced to start from; 0 at first."""
        return committed.get(device, 0)

    def force(self, committed: dict[int, int], device: int, version: int) -> None:
        """A forced start counts like an upload."""
        committed[device] = version

    def members(self, server: Server, current: Round, training: set[int], bypassed: list[int]) -> set[int]:
        """All devices."""
        return set(range(len(server.sizes)))

    def facts(self, devices: list[int], weights: list[float]) -> dict[str, Any]:
        """Only the number of devices: their weights n_k / n are the same in every round."""
        return {"devices": len(devices), "weights": None}


class SlotDevices(Population):
    """K of N devices train at a time; a device joins by a uniform draw and at most once per round."""

    def __init__(self, aggregate_over: Literal["active", "inflight", "all"]) -> None:
        self.aggregate_over = aggregate_over

    def check(self, quota: int | None, slots: int) -> None:
        """A round of K devices brings at most K uploads."""
        check_at_most("quota", quota, slots)

    def default_quota(self, server: Server) -> int:
        """K/2, at least 1."""
        return default_buffer(server, None)

    def concurrency(self, server: Server) -> int:
        """K."""
        return server.slots

    def at_start(self, server: Server, current: Round, training: set[int]) -> list[int]:
        """As many devices as there are free slots, none that has uploaded in this round."""
        heard = current.heard()
        free = server.slots - len(training) - len(heard)
        return server.idle.draw_many(server.random("select"), max(0, free), heard)

    def after_loss(self, server: Server, current: Round, training: set[int]) -> list[int]:
        """Another device takes the slot, unless the round is complete."""
        return [] if current.closing else self.at_start(server, current, training)

    def after_return(self, server: Server, current: Round, training: set[int], device: int) -> list[int]:
        """Any idle devices, for slots that have found none."""
        return self.at_start(server, current, training)

    def version(self, committed: dict[int, int], device: int) -> float:
        """The last round it uploaded in; a device that never uploaded is always deprecated."""
        return committed.get(device, -math.inf)

    def members(self, server: Server, current: Round, training: set[int], bypassed: list[int]) -> set[int]:
        """Active: in flight, picked, or bypassed in the last round (so that such an upload counts once)."""
        if self.aggregate_over == "all":
            return set(range(len(server.sizes)))
        if self.aggregate_over == "inflight":
            return training | set(current.heard())
        return training | set(current.picked) | set(bypassed)

    def facts(self, devices: list[int], weights: list[float]) -> dict[str, Any]:
        """The devices and their weights in the mean."""
        total = sum(weights)
        return {"devices": devices, "weights": [weight / total if total else 0.0 for weight in weights]}
