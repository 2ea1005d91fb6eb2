"""The metric that a run is judged by: its name, its direction and how it is shown."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

ROUNDING = 1e-9  # tolerance of a target: an accuracy of 0.3999999999 reaches 40 %


# The best value that a metric can have, by name and whether more of it is better; of a share it is 1.
_BEST_POSSIBLE = {("mse", False): 0.0, ("mae", False): 0.0, ("r2", True): 1.0, ("perplexity", False): 1.0}


class MetricInfo(NamedTuple):
    """A metric of a learning task, without the code that computes it."""

    name: str
    more_is_better: bool = True
    percent: bool = False  # a share of 1 that is shown in percent

    @property
    def title(self) -> str:
        """The name in a sentence."""
        return self.name.replace("_", " ")

    @property
    def heading(self) -> str:
        """The name at the beginning of a sentence."""
        return self.title.upper() if len(self.title) <= 3 else self.title.capitalize()  # MSE

    @property
    def factor(self) -> float:
        """From the numbers in files to those that are shown."""
        return 100.0 if self.percent else 1.0

    @property
    def unit(self) -> str:
        """What follows a number that is shown."""
        return " %" if self.percent else ""

    @property
    def label(self) -> str:
        """Name and unit, for headings and axes."""
        return f"{self.title} [%]" if self.percent else self.title

    def text(self, value: float, digits: int = 2) -> str:
        """A value as it is shown, without its unit; ``digits`` after the point of a percentage."""
        return f"{100 * value:.{digits}f}" if self.percent else f"{value:.4g}"

    def best(self, values: Iterable[float]) -> float:
        """The best of at least one value; NaN is never the best, unless there is nothing else."""
        found = list(values)
        known = [value for value in found if not math.isnan(value)] or found
        return max(known) if self.more_is_better else min(known)

    def reached(self, value: float, target: float) -> bool:
        """Whether a value is at least as good as a ``target`` in the unit that is shown."""
        tolerance = ROUNDING if self.percent else ROUNDING * abs(target)
        goal = target / self.factor
        return value >= goal - tolerance if self.more_is_better else value <= goal + tolerance

    @property
    def limit(self) -> float | None:
        """The best value that it can have, in the unit of files; None if it is not known."""
        return 1.0 if self.percent else _BEST_POSSIBLE.get((self.name, self.more_is_better))

    def possible(self, target: float) -> bool:
        """Whether a ``target``, in the unit of files, is finite and not better than every value of the metric; a share
        of 0 is reached by every run."""
        if not math.isfinite(target) or (self.percent and target <= 0):
            return False
        return self.limit is None or (target <= self.limit if self.more_is_better else target >= self.limit)

    @property
    def bound(self) -> str:
        """The limit in a sentence, beginning with a comma: ``, at most 1``."""
        if self.limit is None:
            return ""
        return f", at {'most' if self.more_is_better else 'least'} {self.limit:g}"

    def target(self, target: float) -> str:
        """A target in a sentence: ``40 % accuracy``, ``mse 0.5``."""
        return f"{target:g} % {self.title}" if self.percent else f"{self.title} {target:g}"

    def described(self) -> dict[str, Any]:
        """As it is stored in ``environment.json`` and ``summary.json``."""
        return self._asdict()


ACCURACY = MetricInfo("accuracy", percent=True)
"""The metric of classification, and of all runs of version 0.2 and earlier."""


def metric_info(stored: object) -> MetricInfo:
    """The reverse of `MetricInfo.described`; `ACCURACY` for what older versions stored, which is nothing.

    Raises ValueError for anything else.
    """
    if stored is None:
        return ACCURACY
    if not isinstance(stored, dict) or {k: type(v) for k, v in stored.items()} != MetricInfo.__annotations__:
        raise ValueError(f"metric = {stored!r:.80}")
    return MetricInfo(**stored)
