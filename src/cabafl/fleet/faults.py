"""Faults of simulated devices. Every draw is a function of (seed, job) or (seed, device, absence number)."""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from cabafl.errors import UserError
from cabafl.fleet.attacks import Attack
from cabafl.rng import Stream, seed64

_DRAWS = 8  # random numbers reserved per job; 5 are used


class Fate(NamedTuple):
    """The faults of one job."""

    crash_at: float | None = None  # as a fraction of the job's time
    stretch: float = 1.0  # factor on the job's time
    corrupt: str | None = None  # how the upload is corrupted: nan | shape


FINE = Fate()


class Absence(NamedTuple):
    """A device is away from ``leave`` to ``back``, in virtual seconds."""

    leave: float
    back: float


Trace = Mapping[int, list[Absence]]  # by device, in time order


@dataclass(frozen=True)
class Faults:
    """Fault probabilities per job, the times at which devices are away, and what liars among them do."""

    seed: int = 0
    loss: float = 0.0
    corrupt: float = 0.0
    slowdown: float = 0.0
    slowdown_factor: float = 3.0
    present_seconds: float | None = None
    absent_seconds: float | None = None
    trace: Trace = field(default_factory=dict)
    attack: Attack | None = None

    def fate(self, job: int) -> Fate:
        """The faults of job number ``job``: always the same for the same seed."""
        if not (self.loss or self.corrupt or self.slowdown):
            return FINE
        draws = Stream(self._fault_key, job * _DRAWS)
        lost, slow, bad, when, how = (draws.uniform() for _ in range(5))
        return Fate(
            crash_at=when if lost < self.loss else None,
            # The device slows down halfway: half of the job at normal speed, half of it slower.
            stretch=0.5 + 0.5 * self.slowdown_factor if slow < self.slowdown else 1.0,
            corrupt=("nan" if how < 0.5 else "shape") if bad < self.corrupt else None,
        )

    @property
    def devices_leave(self) -> bool:
        """Whether devices can be away at all."""
        return bool(self.trace) or (self.present_seconds is not None and self.absent_seconds is not None)

    def absence(self, device: int, number: int, since: float) -> Absence | None:
        """Absence ``number`` of a device, whose previous one ended at ``since``; None if there are no more.

        Taken from the trace if there is one; otherwise times are exponentially distributed.
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
    """Reads absences from a CSV file with the columns device, leave, back (seconds), in time order per device."""
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
            raise UserError(f"{where}: accepted: rows device,leave,back with numbers") from None
        own = trace.setdefault(device, [])
        if not (0 <= device < devices and (own[-1].back if own else 0.0) <= absence.leave < absence.back):
            raise UserError(f"{where}: accepted: devices 0 to {devices - 1}, absences in time order, leave < back")
        own.append(absence)
    return trace
