"""When simulated devices are away. It is not recorded, but it follows from the seed."""

import numpy as np

from cabafl.fleet import Absence, Faults
from cabafl.watch.columns import Array

MOST = 20_000  # absences that are worked out, half a second of work


class Absences:
    """The absences of all devices up to the latest time that was asked for."""

    def __init__(self, faults: Faults, devices: int) -> None:
        self._faults = faults
        self._found: list[list[Absence]] = [[] for _ in range(devices)]
        self._total = 0

    def at(self, time: float) -> Array | None:
        """Which devices are away; None if that is too much to work out."""
        away = np.zeros(len(self._found), dtype=bool)
        for device, own in enumerate(self._found):
            while not own or own[-1].back <= time:
                if self._total >= MOST:
                    return None
                absence = self._faults.absence(device, len(own), own[-1].back if own else 0.0)
                if absence is None:
                    break
                own.append(absence)
                self._total += 1
            away[device] = any(absence.leave <= time < absence.back for absence in reversed(own))
        return away
