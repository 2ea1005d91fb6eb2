"""What a search optimises: the metric of the task, or the cost to reach a value of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from cabafl.errors import UserError
from cabafl.recording.events import Evaluated
from cabafl.recording.metrics import WINDOW, averaged_rows, best_window_mean, first_evaluations
from cabafl.recording.scale import ACCURACY, MetricInfo
from cabafl.reporting.measures import INFINITE, cost_to

# A trial without the target has a score beyond every cost, and the better its metric the lower. Searches compare scores
# only, so the size of the number does not matter.
NOT_REACHED = 1e15
COSTS = {"time": "time", "energy": "joules", "transfers": "transfers"}  # name in a metric -> name of the cost


@dataclass(frozen=True)
class Metric:
    """The metric of the task, such as ``accuracy``, or ``time_to_45`` and the like: ``cost`` until ``target``."""

    name: str
    cost: str | None = None
    target: float = 0.0
    info: MetricInfo = ACCURACY

    @property
    def lower_is_better(self) -> bool:
        """Whether a low score is a good one."""
        return self.cost is not None or not self.info.more_is_better

    def loss(self, score: float) -> float:
        """The score turned so that lower is better."""
        return score if self.lower_is_better else -score

    def reached(self, score: float) -> bool:
        """Whether the score is that of a trial that has reached the target. It then stays as it is in longer runs."""
        return self.cost is not None and score < NOT_REACHED

    def score(self, runs: Sequence[Sequence[Evaluated]], whole: bool) -> float:
        """The mean over the runs of a trial, one per seed; ``whole`` as in `result`. A cost counts only if all runs
        have reached the target."""
        runs = [counted(rows) for rows in runs]
        mean = fmean(result(rows, whole) for rows in runs)
        if self.cost is None:
            return mean
        costs = [cost_to(rows, self.cost, self.target) for rows in runs]
        return NOT_REACHED * (2 - self._goodness(mean)) if INFINITE in costs else fmean(costs)

    def _goodness(self, mean: float) -> float:
        """A number from -1 to 1 that grows as the metric gets better."""
        if self.info.percent:
            return mean
        return (mean if self.info.more_is_better else -mean) / (1 + abs(mean))


def counted(rows: Sequence[Evaluated]) -> Sequence[Evaluated]:
    """The evaluations of the models that count, as in reports: of the averaged ones, if there are any."""
    return averaged_rows(rows) or rows


def result(rows: Sequence[Evaluated], whole: bool) -> float:
    """The metric in the best window of versions, as in reports, of a ``whole`` run. Of a part of a run, or a run with
    too few versions, the window is at most half of the versions, so that the start of the curve does not count."""
    first = first_evaluations([row.version for row in rows])
    values = [row.value for row, new in zip(rows, first, strict=True) if new]
    half = min(WINDOW, (len(values) + 1) // 2)
    window = WINDOW if whole and len(values) >= WINDOW else half
    best = best_window_mean(values, window, rows[0].metric.more_is_better)
    assert best is not None  # every run begins with an evaluation
    return best[0]


def parse_metric(text: str | None, info: MetricInfo = ACCURACY) -> Metric:
    """Reads ``--metric``; raises `UserError` if it is neither the metric of the task nor a cost to a value of it."""
    if text is None or text == info.name:
        return Metric(info.name, info=info)
    match = re.fullmatch(r"(\w+?)_to_(\d+(?:\.\d+)?)", text)
    most = 100.0 if info.percent else INFINITE
    if match is None or match[1] not in COSTS or not 0 < float(match[2]) <= most:
        costs = ", ".join(f"{name}_to_{45 if info.percent else 0.5}" for name in COSTS)
        any_value = "any percentage" if info.percent else f"any value of {info.name}"
        raise UserError(f"--metric = {text!r}: accepted: {info.name}, or {costs}, with {any_value}")
    return Metric(text, COSTS[match[1]], float(match[2]), info)
