"""The device's say: tables ``[terms]``, ``[when]`` and ``[limits]`` of ``device.toml``, which no experiment changes.

Reading a fleet folder imports this module: nothing here needs torch.
"""

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from cabafl.config import PrivacySection
from cabafl.errors import UserError
from cabafl.names import FUNCTION

if TYPE_CHECKING:
    from cabafl.methods.base import FeatureKind

_HOURS = re.compile(r"(\d{1,2})(?::(\d\d))?-(\d{1,2})(?::(\d\d))?")
_DAY = 24 * 60  # minutes


class AgainstTerms(UserError):
    """The device declines. The text names settings and the device's terms only: the server may read it."""


def tellable(error: BaseException) -> str:
    """What the server may know of a failure: why the device declines, or else the class of the error alone."""
    return str(error) if isinstance(error, AgainstTerms) else type(error).__name__


class _Table(BaseModel):
    """A table of ``device.toml``. Unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Terms(_Table):
    """Floors: what an experiment has to respect to get anything from this device."""

    labels: bool = False  # tells how many samples of each class it has, if asked
    feature_noise: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # at least; multiple of the clip
    feature_questions_per_day: Annotated[int, Field(ge=0)] | None = None  # at most, in any 24 hours
    dp: bool = False  # trains with DP-SGD only

    def check(self, privacy: PrivacySection) -> None:
        """Raises `AgainstTerms` if the device must not take part."""
        if self.dp and privacy.dp_clip is None:
            raise AgainstTerms(
                "privacy.dp_noise = 0: the device trains with DP-SGD only (its dp = true); accepted: privacy.dp_clip "
                "and privacy.dp_noise above 0"
            )

    def applied(self, privacy: PrivacySection) -> PrivacySection:
        """The experiment's privacy with at least the device's noise on features."""
        noise = self.feature_noise or 0.0
        if privacy.feature_clip is None or privacy.feature_noise >= noise:
            return privacy
        return privacy.model_copy(update={"feature_noise": noise})

    def check_question(self, kind: "FeatureKind", privacy: PrivacySection) -> None:
        """Raises `AgainstTerms` if a question for this kind of features must not be answered."""
        if kind == "labels" and not self.labels:
            raise AgainstTerms(
                "features = labels: the device tells no label counts (its labels = false); accepted: activations, "
                "activation_counts"
            )
        if self.feature_noise is not None and privacy.feature_clip is None:
            raise AgainstTerms(
                f"privacy.feature_clip: not set, but the device makes its features noisy (its feature_noise = "
                f"{self.feature_noise:g}), which needs vectors of bounded norm; accepted: a number above 0"
            )

    def decisions(self, privacy: PrivacySection) -> list[str]:
        """What the terms mean for an experiment that the device takes part in, for the log."""
        found = ["label counts if asked" if self.labels else "no label counts"]
        if self.feature_noise is not None and privacy.feature_clip is None:
            found.append("no features, because privacy.feature_clip is not set")
        elif self.applied(privacy) != privacy:
            found.append(f"feature noise {self.feature_noise:g} instead of {privacy.feature_noise:g}")
        if self.feature_questions_per_day is not None:
            found.append(f"at most {self.feature_questions_per_day} feature questions in 24 hours")
        if self.dp:
            found.append(f"DP-SGD with noise {privacy.dp_noise:g}, as required")
        return found


def hours_of(text: str) -> tuple[int, int]:
    """Start and end of ``22-6`` or ``22:30-6:15`` in minutes after midnight; raises ValueError if it is neither."""
    found = _HOURS.fullmatch(text)
    numbers = [int(part or 0) for part in found.groups()] if found else []
    if found and numbers[1] < 60 and numbers[3] < 60:
        start, end = numbers[0] * 60 + numbers[1], numbers[2] * 60 + numbers[3]
        if start < _DAY and end <= _DAY and start != end % _DAY:
            return start, end
    raise ValueError("not hours of a day; accepted: 22-6 or 22:30-6:15, with different ends")


def _hours(text: str) -> str:
    hours_of(text)
    return text


def function_name(text: str) -> str:
    """Checks a name ``package.module:function``; raises ValueError."""
    if not FUNCTION.fullmatch(text):
        raise ValueError("not the name of a function; accepted: package.module:function")
    return text


class When(_Table):
    """Conditions, all of which hold when a job begins."""

    function: Annotated[str, AfterValidator(function_name)] | None = None  # returns True, or False or a reason
    mains_power: bool = False
    below_celsius: Annotated[float, Field(gt=0, le=120)] | None = None  # the hottest sensor
    hours: Annotated[str, AfterValidator(_hours)] | None = None  # local time


class Resources(_Table):
    """What the device process may use of its machine."""

    memory_mb: Annotated[int, Field(ge=1)] | None = None  # 2**20 bytes each
    nice: Annotated[int, Field(ge=0, le=19)] | None = None
