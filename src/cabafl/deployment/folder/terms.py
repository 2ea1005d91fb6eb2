"""What a device's owner decides, in tables of ``device.toml``: the server's experiment cannot undercut it."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_HOURS = re.compile(r"(\d{1,2})-(\d{1,2})")


def function_name(text: str) -> str:
    """Checks a name ``package.module:function``."""
    if not _FUNCTION.fullmatch(text):
        raise ValueError("not a function; accepted: package.module:function")
    return text


def _hours(text: str) -> str:
    match = _HOURS.fullmatch(text)
    if (
        not match
        or not all(0 <= int(hour) <= 24 for hour in match.groups())
        or int(match[1]) % 24 == int(match[2]) % 24
    ):
        raise ValueError("not hours of the day; accepted: from-to in local time, such as 22-6 or 0-7")
    return text


class Terms(BaseModel):
    """``[terms]``: on which terms the device takes part in an experiment."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    labels: bool = False  # may report how many samples of each class it has
    feature_noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None  # smallest `privacy.feature_noise`
    feature_questions_per_day: Annotated[int, Field(ge=0)] | None = None
    dp: bool = False  # trains with DP-SGD only


class When(BaseModel):
    """``[when]``: conditions, all of which must hold for the device to train."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    function: Annotated[str, AfterValidator(function_name)] | None = None  # returns whether it may train now
    mains_power: bool = False  # only while the machine is on mains power
    below_celsius: Annotated[float, Field(allow_inf_nan=False)] | None = None
    hours: Annotated[str, AfterValidator(_hours)] | None = None

    @property
    def span(self) -> tuple[int, int] | None:
        """``hours`` as the first hour and the hour after the last one, in local time; the first may be the larger."""
        if self.hours is None:
            return None
        first, last = self.hours.split("-")
        return int(first) % 24, int(last) % 24


class Resources(BaseModel):
    """``[limits]``: what the device process may take from its machine."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    memory_mb: Annotated[int, Field(ge=64)] | None = None
    nice: Annotated[int, Field(ge=0, le=19)] | None = None
