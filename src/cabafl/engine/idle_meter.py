"""The energy that simulated devices spend while they wait."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


class IdleMeter:
    """Idle watts x the seconds in which a device is present and neither computes nor transfers.

    Counted from the other side, so that an event costs one addition whatever the number of devices: idle power of all
    devices since time 0, minus what it would have been while they were active or away. A device that answers a feature
    collection during a job does two things at once; both times are subtracted, so that each of them adds what it draws
    above idle power.
    """

    def __init__(self, watts: npt.NDArray[np.float64]) -> None:
        self.watts = watts
        self.excluded = 0.0  # joules of idle power in the times that do not count
        self._watt = watts.data  # a memoryview: faster for single entries
        self._total = float(watts.sum())

    def exclude(self, device: int, seconds: float) -> None:
        """A device was active or away for so long."""
        self.excluded += self._watt[device] * seconds

    def joules(self, now: float, busy: Iterable[tuple[int, float]]) -> float:
        """Idle energy of all devices until ``now``. ``busy``: devices in a job or away now, and since when."""
        current = sum(self._watt[device] * (now - since) for device, since in busy)
        return self._total * now - self.excluded - current
