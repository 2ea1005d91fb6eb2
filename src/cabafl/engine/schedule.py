"""The learning rate over a run: a factor that the engine computes when it sends a job, and that travels with it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Literal

from cabafl.config import TrainingSection
from cabafl.errors import UserError
from cabafl.own_code import find_own, reason

Curve = Callable[[float], float]
"""Seconds of the run, or models published -> factor on the learning rate."""


@dataclass(frozen=True)
class Schedule:
    """Multiplies the learning rate of a job by a factor that follows from when it is sent."""

    name: str
    curve: Curve
    over: Literal["time", "versions"] = "time"

    def at(self, now: float, version: int) -> float:
        """The factor for a job that is sent now; a method's own ``lr_scale`` is multiplied by it."""
        return self.factor(now if self.over == "time" else float(version))

    def factor(self, position: float) -> float:
        """The factor at a position; raises `UserError` if that is not a number above 0."""
        try:
            factor: object = self.curve(position)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise self._problem(position, f"fails ({reason(error)})") from error
        if isinstance(factor, Real) and 0 < float(factor) < math.inf:
            return float(factor)
        raise self._problem(position, f"{factor!r:.80}")

    def _problem(self, position: float, found: str) -> UserError:
        where = f"at {position:g} {_UNITS[self.over]}"
        return UserError(f"training.schedule = {self.name!r}: {found} {where}; accepted: a number above 0")


_UNITS = {"time": "s", "versions": "versions"}


def cosine(length: float, floor: float) -> Curve:
    """Half a cosine from 1 down to ``floor`` at ``length``, which stays from there on."""
    return lambda position: floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, position / length))) / 2


def steps(length: float, factor: float) -> Curve:
    """``factor`` once more after every ``length``."""
    return lambda position: max(factor ** math.floor(position / length), 1e-30)


def make_schedule(training: TrainingSection, seconds: float | None) -> Schedule | None:
    """How the learning rate changes over a run that lasts ``seconds`` (None: no limit); None: it does not."""
    name, over, length = training.schedule, training.schedule_over, training.schedule_length
    if name == "constant":
        return None
    if ":" in name:
        return _own(name, over)
    if length is None and name == "cosine" and over == "time":
        length = seconds
    if length is None:
        raise UserError(
            f"training.schedule_length: not set; training.schedule = {name} over {over} needs it; accepted: a number "
            f"of {'seconds' if over == 'time' else over}"
        )
    curve = cosine(length, training.schedule_floor) if name == "cosine" else steps(length, training.schedule_factor)
    return Schedule(name, curve, over)


def _own(name: str, over: Literal["time", "versions"]) -> Schedule:
    """The user's function ``package.module:function``."""
    schedule = Schedule(name, find_own("training.schedule", name), over)
    schedule.factor(0.0)
    return schedule
