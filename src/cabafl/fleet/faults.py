"""What goes wrong on simulated devices. Every draw is a function of (seed, job) or (seed, device, number)."""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from cabafl.errors import UserError
from cabafl.rng import Stream, seed64

_DRAWS = 8  # numbers reserved per job


class Fate(NamedTuple):
    """How one job goes: when it crashes (share of its time), how its time stretches, what its upload is worth."""

    crash_at: float | None = None
    stretch: float = 1.0
    corrupt: str | None = None  # nan | shape


FINE = Fate()


class Absence(NamedTuple):
    """A device is away from ``leave`` to ``back``."""

    leave: float
    back: float


Trace = Mapping[int, list[Absence]]  # by device, in time order


@dataclass(frozen=True)
class Faults:
    """Probabilities per job, and when devices are away."""

    seed: int = 0
    loss: float = 0.0
    corrupt: float = 0.0
    slowdown: float = 0.0
    slowdown_factor: float = 3.0
    present_seconds: float | None = None
    absent_seconds: float | None = None
    trace: Trace = field(default_factory=dict)

    def fate(self, job: int) -> Fate:
        """What happens to a job; the same in every repetition."""
        if not (self.loss or self.corrupt or self.slowdown):
            return FINE
        draws = Stream(self._fault_key, job * _DRAWS)
        lost, slow, bad, when, how = (draws.uniform() for _ in range(5))
        return Fate(
            crash_at=when if lost < self.loss else None,
            # The device slows down in the middle: half the job at the usual speed, half of it slower.
            stretch=0.5 + 0.5 * self.slowdown_factor if slow < self.slowdown else 1.0,
            corrupt=("nan" if how < 0.5 else "shape") if bad < self.corrupt else None,
        )

    @property
    def devices_leave(self) -> bool:
        """Whether any device is ever away."""
        return bool(self.trace) or (self.present_seconds is not None and self.absent_seconds is not None)

    def absence(self, device: int, number: int, since: float) -> Absence | None:
        """A device's absence of that number, the one before having ended at ``since``; None when there is none left.

        From the trace, or with exponentially distributed times.
        """
        if self.trace:
            own = self.trace.get(device, ())
            return own[number] if number < len(own) else None
        if self.present_seconds is None or self.absent_seconds is None:
            return None
        draws = Stream(self._absence_key, (device << 32) + 2 * number)
        leave = since - self.present_seconds * math.log1p(-draws.uniform())
        return Absence(leave, leave - self.absent_seconds * math.log1p(-draws.uniform()))

    @cached_property
    def _fault_key(self) -> int:
        return seed64(self.seed, "faults")

    @cached_property
    def _absence_key(self) -> int:
        return seed64(self.seed, "absence")


def read_trace(path: Path, devices: int) -> Trace:
    """A CSV file with the columns device, leave, back (seconds): one row per absence, in time order per device."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"fleet.faults.trace = '{path}': cannot be read: {error}") from None
    trace: dict[int, list[Absence]] = {}
    for line, row in enumerate(rows, start=2):
        where = f"fleet.faults.trace = '{path}', line {line}"
        try:
            device, absence = int(row["device"]), Absence(float(row["leave"]), float(row["back"]))
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{where}: accepted are rows device,leave,back of numbers") from None
        own = trace.setdefault(device, [])
        if not (0 <= device < devices and (own[-1].back if own else 0.0) <= absence.leave < absence.back):
            raise UserError(f"{where}: accepted are devices 0 to {devices - 1}, absences in time order, leave < back")
        own.append(absence)
    return trace
