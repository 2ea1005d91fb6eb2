"""Tables of a report: formatted values, with the best value of each column marked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cabafl.reporting.measures import MAX_SPEEDUPS, Measures, Values, cost_key, speedups

NOT_REACHED = "NA"
NOT_AVAILABLE = "-"


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
    """Returns the tables of accuracy, of behaviour, and of the costs of each target."""
    costs = [_table(f"To reach {target:g} % accuracy", _costs(target), measures) for target in measures.targets]
    return [_table("Accuracy", _accuracy(measures), measures), _table("Behaviour", _behaviour(), measures), *costs]


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
        found.append(Table(f"Speed-up to {target:g} %, row over column", [measures.noun, *labels], rows))
    return found


def _accuracy(measures: Measures) -> list[_Column]:
    columns = [
        _Column("seeds", "seeds", lambda v: f"{v['seeds']:.0f}"),
        _Column("accuracy [%]", "best_window_mean", _pair("best_window_mean", "best_window_deviation"), max),
        _Column("over seeds ±", "seed_spread", _percent("seed_spread"), min),
        _Column("raw [%]", "raw_mean", _pair("raw_mean", "raw_deviation"), max),
        _Column("published [%]", "published_mean", _pair("published_mean", "published_deviation"), max),
        _Column("at the end [%]", "final_accuracy", _percent("final_accuracy"), max),
    ]
    optional = ("raw_mean", "published_mean")
    unknown = [key for key in optional if all(row.values[key] is None for row in measures.rows)]
    return [column for column in columns if column.key not in unknown]


def _costs(target: float) -> list[_Column]:
    def column(heading: str, name: str, scale: float) -> _Column:
        key = cost_key(name, target)
        return _Column(heading, key, _number(key, scale, NOT_REACHED), min)

    return [
        column("time [s]", "time", 1),
        column("transfers", "transfers", 1),
        column("energy [kJ]", "joules", 1e-3),
    ]


def _behaviour() -> list[_Column]:
    def fairness(values: Values) -> str:
        value = values["fairness"]
        return NOT_AVAILABLE if value is None else f"{value:.1e}"

    def staleness(values: Values) -> str:
        value = values["mean_staleness"]
        return NOT_AVAILABLE if value is None else f"{value:.2f}"

    return [
        _Column("stability [%]", "stability", _percent("stability"), min),
        _Column("detrended [%]", "stability_detrended", _percent("stability_detrended"), min),
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
    known = [value for value in values if value is not None]
    if column.better is None or len(values) < 2 or not known or (len(known) == len(values) and len(set(known)) == 1):
        return None
    return column.better(known)


def _percent(key: str) -> Callable[[Values], str]:
    def show(values: Values) -> str:
        value = values[key]
        return NOT_AVAILABLE if value is None else f"{100 * value:.2f}"

    return show


def _pair(mean: str, deviation: str) -> Callable[[Values], str]:
    def show(values: Values) -> str:
        middle, spread = values[mean], values[deviation]
        return NOT_AVAILABLE if middle is None or spread is None else f"{100 * middle:.2f} ± {100 * spread:.2f}"

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
