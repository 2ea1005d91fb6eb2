"""Tables of a report: formatted values, with the best value of each column marked."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cabafl.recording.scale import MetricInfo
from cabafl.reporting.measures import MAX_SPEEDUPS, Measures, Values, cost_key, speedups

NOT_REACHED = "NA"
NOT_AVAILABLE = "-"
OF_DEVICES = "devices_"  # columns about single devices begin with it


@dataclass(frozen=True)
class Cell:
    """The text of a cell, and whether it is the best of its column."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A table for readers; the first column is the method."""

    title: str
    headings: list[str]
    rows: list[list[Cell]]


@dataclass(frozen=True)
class _Column:
    heading: str
    key: str
    show: Callable[[Values], str]
    better: Callable[[Sequence[float]], float] | None = None  # max or min; None: no value is better


def tables(measures: Measures) -> list[Table]:
    """Returns the tables of the metric, of behaviour, and of the costs of each target."""
    metric = measures.metric
    costs = [_table(f"To reach {metric.target(target)}", _costs(target), measures) for target in measures.targets]
    first = _table(metric.heading, _results(measures), measures)
    devices = _devices(measures)
    of_devices = [_table("What each device gets", devices, measures)] if devices else []
    return [first, *of_devices, _table("Behaviour", _behaviour(metric), measures), *costs]


def speedup_tables(measures: Measures) -> list[Table]:
    """Returns a table of speed-ups of row over column for each target that at least two methods reach; none if they
    are too many for a table."""
    labels = [row.label for row in measures.rows]
    if len(labels) > MAX_SPEEDUPS:
        return []
    found = []
    for target in measures.targets:
        if sum(row.values[cost_key("time", target)] is not None for row in measures.rows) < 2:
            continue
        rows = [
            [Cell(label), *(Cell(NOT_REACHED if ratio is None else f"{ratio:.2f}") for ratio in ratios)]
            for label, ratios in zip(labels, speedups(measures, target), strict=True)
        ]
        found.append(
            Table(f"Speed-up to {target:g}{measures.metric.unit}, row over column", [measures.noun, *labels], rows)
        )
    return found


def _results(measures: Measures) -> list[_Column]:
    metric = measures.metric
    unit, better, final = (
        " [%]" if metric.percent else "",
        max if metric.more_is_better else min,
        f"final_{metric.name}",
    )
    further = [name for name in measures.more if not name.startswith(OF_DEVICES)]
    columns = [
        _Column("seeds", "seeds", lambda v: f"{v['seeds']:.0f}"),
        _Column(metric.label, "best_window_mean", _pair(metric, "best_window_mean", "best_window_deviation"), better),
        _Column("over seeds ±", "seed_spread", _text(metric, "seed_spread"), min),
        _Column(f"raw{unit}", "raw_mean", _pair(metric, "raw_mean", "raw_deviation"), better),
        _Column(f"published{unit}", "published_mean", _pair(metric, "published_mean", "published_deviation"), better),
        _Column(f"at the end{unit}", final, _text(metric, final), better),
        *(_Column(name.replace("_", " "), f"final_{name}", _plain(f"final_{name}")) for name in further),
    ]
    optional = ("raw_mean", "published_mean")
    unknown = [key for key in optional if all(row.values[key] is None for row in measures.rows)]
    return [column for column in columns if column.key not in unknown]


def _devices(measures: Measures) -> list[_Column]:
    """How the metric is distributed over the devices at the end, if they were evaluated."""
    metric = measures.metric
    unit, better = " [%]" if metric.percent else "", max if metric.more_is_better else min

    def column(heading: str, name: str, best: Callable[[Sequence[float]], float]) -> _Column:
        return _Column(f"{heading}{unit}", f"final_{name}", _text(metric, f"final_{name}"), best)

    if "devices_mean" not in measures.more:
        return []
    return [
        column("mean", "devices_mean", better),
        column("deviation", "devices_deviation", min),
        column("worst decile", "devices_worst_decile", better),
        _Column("Jain index", "final_devices_jain", _plain("final_devices_jain"), max),
    ]


def _costs(target: float) -> list[_Column]:
    def column(heading: str, name: str, scale: float) -> _Column:
        key = cost_key(name, target)
        return _Column(heading, key, _number(key, scale, NOT_REACHED), min)

    return [
        column("time [s]", "time", 1),
        column("transfers", "transfers", 1),
        column("energy [kJ]", "joules", 1e-3),
    ]


def _behaviour(metric: MetricInfo) -> list[_Column]:
    def fairness(values: Values) -> str:
        value = values["fairness"]
        return NOT_AVAILABLE if value is None else f"{value:.1e}"

    def staleness(values: Values) -> str:
        value = values["mean_staleness"]
        return NOT_AVAILABLE if value is None else f"{value:.2f}"

    unit = " [%]" if metric.percent else ""
    return [
        _Column(f"stability{unit}", "stability", _text(metric, "stability"), min),
        _Column(f"detrended{unit}", "stability_detrended", _text(metric, "stability_detrended"), min),
        _Column("fairness", "fairness", fairness, min),
        _Column("mean staleness", "mean_staleness", staleness),
        _Column("versions", "versions", _number("versions", 1, NOT_AVAILABLE)),
        _Column("jobs lost", "jobs_lost", _number("jobs_lost", 1, NOT_AVAILABLE)),
        _Column("never heard", "never_heard", _number("never_heard", 1, NOT_AVAILABLE)),
    ]


def _table(title: str, columns: Sequence[_Column], measures: Measures) -> Table:
    best = [_best([row.values[column.key] for row in measures.rows], column) for column in columns]
    body = []
    for row in measures.rows:
        marks = (b is not None and row.values[c.key] == b for b, c in zip(best, columns, strict=True))
        texts = (column.show(row.values) for column in columns)
        body.append([Cell(row.label), *(Cell(text, mark) for text, mark in zip(texts, marks, strict=True))])
    return Table(title, [measures.noun, *(column.heading for column in columns)], body)


def _best(values: Sequence[float | None], column: _Column) -> float | None:
    """The best value of a column; None if all are equal or there is only one method."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if column.better is None or len(values) < 2 or not known or (len(known) == len(values) and len(set(known)) == 1):
        return None
    return column.better(known)


def _text(metric: MetricInfo, key: str) -> Callable[[Values], str]:
    def show(values: Values) -> str:
        value = values[key]
        return NOT_AVAILABLE if value is None else metric.text(value)

    return show


def _plain(key: str) -> Callable[[Values], str]:
    """Of a further metric, whose unit a report does not know."""

    def show(values: Values) -> str:
        value = values[key]
        return NOT_AVAILABLE if value is None else f"{value:.4g}"

    return show


def _pair(metric: MetricInfo, mean: str, deviation: str) -> Callable[[Values], str]:
    def show(values: Values) -> str:
        middle, spread = values[mean], values[deviation]
        return NOT_AVAILABLE if middle is None or spread is None else f"{metric.text(middle)} ± {metric.text(spread)}"

    return show


def _number(key: str, scale: float, missing: str) -> Callable[[Values], str]:
    def show(values: Values) -> str:
        value = values[key]
        if value is None:
            return missing
        number = value * scale
        whole = number >= 100 or (scale == 1 and number == int(number))
        return f"{number:,.0f}" if whole else f"{number:,.1f}"

    return show
