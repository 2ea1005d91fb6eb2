"""Devices that fail again and again get no jobs for a while: they would take the jobs of the others."""

from typing import Any

from cabafl.state import State

PATIENCE = 3  # failures in a row before a device rests
FIRST_REST, LONGEST_REST = 30.0, 600.0  # seconds; every further failure doubles the rest


class Resting(State):
    """Counts failures in a row of each device, and knows until when it rests. Nothing is kept of devices that work."""

    def __init__(self) -> None:
        self._failures: dict[int, int] = {}
        self._until: dict[int, float] = {}

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores."""
        return {"failures": self._failures, "until": self._until}

    def restore(self, state: dict[str, Any]) -> None:
        """Sets everything from a `state`."""
        self._failures, self._until = state["failures"], state["until"]

    def fail(self, device: int, now: float) -> float | None:
        """Counts a failure; returns the end of the rest that begins now, if one does."""
        count = self._failures[device] = self._failures.get(device, 0) + 1
        if count < PATIENCE:
            return None
        until = self._until[device] = now + min(FIRST_REST * 2.0 ** min(count - PATIENCE, 20), LONGEST_REST)
        return until

    def work(self, device: int) -> None:
        """The device has delivered: its failures are forgotten."""
        self._failures.pop(device, None)
        self._until.pop(device, None)

    def rests(self, device: int, now: float) -> bool:
        """Whether the device gets no job now."""
        return self._until.get(device, now) > now
