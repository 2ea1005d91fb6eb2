"""The numbers of a comparison: one row per method, aggregated over its seeds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, median_high, median_low, stdev

from cabafl.paper.published import published_accuracy
from cabafl.recording.events import Evaluated
from cabafl.recording.scale import ACCURACY, ROUNDING, MetricInfo
from cabafl.reporting.runs import Run, by_label, metric_of

Values = dict[str, float | None]
COSTS: dict[str, Callable[[Evaluated], float]] = {
    "time": lambda row: row.time,
    "transfers": lambda row: row.transfers,
    "joules": lambda row: row.joules,
}
INFINITE = float("inf")
MAX_SPEEDUPS = 40  # rows up to which there are speed-ups of each over each


@dataclass(frozen=True)
class MethodRow:
    """The values of one method, in the units of the run folder (an accuracy is 0 to 1); None: not available."""

    label: str
    values: Values


@dataclass(frozen=True)
class Measures:
    """All rows, and the targets for which they have costs, in the unit that is shown; ``noun`` says what a row is,
    ``more`` are the names of further metrics."""

    rows: list[MethodRow]
    targets: list[float]
    noun: str = "method"
    metric: MetricInfo = ACCURACY
    more: tuple[str, ...] = ()


def measure(runs: Sequence[Run], targets: Sequence[float] | None = None, noun: str = "method") -> Measures:
    """Computes everything the tables show. ``targets`` are in the unit that is shown, such as percent; default: see
    `default_targets`."""
    groups, metric = by_label(runs), metric_of(runs)
    chosen = sorted(set(targets)) if targets else default_targets(groups)
    recorded = [name for name, _ in runs[0].metrics[-1].more]
    more = [name for name in recorded if all(f"final_{name}" in run.summary for run in runs)]
    rows = [MethodRow(label, _values(group, chosen, more)) for label, group in groups.items()]
    return Measures(rows, chosen, noun, metric, tuple(more))


def _values(group: Sequence[Run], targets: Sequence[float], more: Sequence[str]) -> Values:
    best = [run.summary["best_window_mean"] for run in group]
    known = [value for value in best if value is not None]
    simulated = group[0].clock == "virtual"  # the paper's accuracies are of simulations
    published = (published_accuracy(group[0].experiment) if simulated else None) or (None, None)
    values: Values = {
        "seeds": len(group),
        "best_window_mean": _mean(best),
        "best_window_deviation": _mean([run.summary["best_window_deviation"] for run in group]),
        "seed_spread": stdev(known) if len(known) > 1 and all(map(math.isfinite, known)) else None,
        "raw_mean": _mean([_raw(run, "best_window_mean") for run in group]),
        "raw_deviation": _mean([_raw(run, "best_window_deviation") for run in group]),
        "published_mean": None if published[0] is None else published[0] / 100,
        "published_deviation": None if published[1] is None else published[1] / 100,
    }
    for name in (group[0].metric.name, *more):
        values[f"final_{name}"] = _mean([run.summary[f"final_{name}"] for run in group])
    for target in targets:
        for name in COSTS:
            values[cost_key(name, target)] = _median_cost(group, name, target)
    for key in ("stability", "stability_detrended", "fairness", "mean_staleness", "versions"):
        values[key] = _mean([run.summary[key] for run in group])
    values["jobs_lost"] = _mean([sum(run.summary["losses"].values()) for run in group])
    values["never_heard"] = _mean([len(run.counts.never_heard) for run in group])
    return values


def _raw(run: Run, key: str) -> float | None:
    """A figure of the published models, if the run is judged by averaged ones."""
    raw: Values = run.summary.get("raw", {})
    return raw.get(key)


def cost_key(name: str, target: float) -> str:
    """The column name, e.g. ``time_to_40``."""
    return f"{name}_to_{target:g}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _median_cost(group: Sequence[Run], name: str, target: float) -> float | None:
    """Median over seeds; a seed that does not reach the target counts as infinite."""
    middle = median(cost_to(run.metrics, name, target) for run in group)
    return None if middle == INFINITE else middle


def cost_to(metrics: Sequence[Evaluated], name: str, target: float) -> float:
    """Time, transfers or joules at the first evaluation that reaches ``target``; infinite if there is none."""
    cost = COSTS[name]
    return next((cost(row) for row in metrics if row.metric.reached(row.value, target)), INFINITE)


def default_targets(groups: Mapping[str, Sequence[Run]]) -> list[float]:
    """Round numbers that the best, the median and the worst method reach, better than at the start.

    Percentages: multiples of 5, or of 1 if the best method gains less than 10 points. Others: two digits.
    """
    runs = [run for group in groups.values() for run in group]
    metric = runs[0].metric
    reached = sorted(filter(math.isfinite, (_reached(group) for group in groups.values())))
    if not reached:
        return []
    if not metric.percent:
        start = metric.best(run.metrics[0].value for run in runs)
        rounded = {_two_digits(value, metric) for value in (reached[0], median_low(reached), reached[-1])}
        return sorted(target for target in rounded if not metric.reached(start, target))
    start = 100 * metric.best(run.metrics[0].value for run in runs)
    step = 5.0 if reached[-1] - start >= 10 else 1.0
    rounded = {step * ((value + 100 * ROUNDING) // step) for value in (reached[0], median_low(reached), reached[-1])}
    if len(rounded) == 1:
        rounded.add(max(rounded) - step)
    return sorted(target for target in rounded if target > start)


def _two_digits(value: float, metric: MetricInfo) -> float:
    """A number of two digits that ``value`` reaches."""
    if value == 0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    rounded = math.floor(value / unit) if metric.more_is_better else math.ceil(value / unit)
    return float(f"{rounded * unit:.6g}")


def _reached(group: Sequence[Run]) -> float:
    """Best target with a finite median cost over the seeds."""
    metric = group[0].metric
    middle = median_low if metric.more_is_better else median_high
    best = [metric.best(row.value for row in run.metrics) for run in group]
    known = [value for value in best if not math.isnan(value)]
    return metric.factor * middle(known) if known else math.nan


def speedups(measures: Measures, target: float) -> list[list[float | None]]:
    """Speed-ups of row over column: the column's time to the target divided by the row's; None if one never reaches
    it."""
    times = [row.values[cost_key("time", target)] for row in measures.rows]
    return [[None if a is None or b is None else _ratio(b, a) for b in times] for a in times]


def _ratio(other: float, own: float) -> float | None:
    return other / own if own > 0 else 1.0 if other == 0 else None
