"""What a report adds for a sweep: the metric over the values of each key, colours per value, a table of the values."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from cabafl.recording.metrics import WINDOW
from cabafl.recording.scale import ACCURACY, MetricInfo
from cabafl.reporting.figures import RenderedFigure, escaped, render
from cabafl.reporting.formats import csv_text, raw
from cabafl.reporting.measures import Measures, Values
from cabafl.reporting.styles import COLOURS, DASHES, KNOWN, MARKERS, Style
from cabafl.toml import toml_value

LOG_RATIO = 20  # values that differ by more than this factor are shown on a logarithmic axis


class SweepPoint(NamedTuple):
    """One combination: a method and the values of the swept keys that apply to it."""

    method: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Sweep:
    """What the runs of a sweep vary."""

    keys: Mapping[str, str]
    """Name of a swept key in the report -> key of the experiment, in the order of the command line."""

    points: Mapping[str, SweepPoint]
    """Label of the runs -> combination, in the order of the tables."""


class Line(NamedTuple):
    """A line of a figure: points (value, metric as it is shown, spread over seeds) or, without the key, one level."""

    label: str
    points: list[tuple[Any, float, float | None]]
    level: float | None


def value_text(value: Any) -> str:
    """A value for readers; different values have different texts."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {value_text(item)}" for key, item in value.items()) + "}"
    return toml_value(value)


def sweep_styles(sweep: Sweep) -> dict[str, Style]:
    """A colour per combination of values; methods differ in dashes and markers. With more combinations than colours,
    the dashes differ as well."""
    methods = list(dict.fromkeys(point.method for point in sweep.points.values()))
    combinations = list(dict.fromkeys(_texts(point) for point in sweep.points.values()))
    found = {}
    for label, point in sweep.points.items():
        place, method = combinations.index(_texts(point)), methods.index(point.method)
        turn, colour = divmod(place, len(COLOURS))
        marker = (method if len(methods) > 1 else place) % len(MARKERS)
        found[label] = Style(COLOURS[colour], DASHES[(method + turn) % len(DASHES)], MARKERS[marker])
    return found


def value_figures(sweep: Sweep, measures: Measures) -> list[RenderedFigure]:
    """The metric over the values of each swept key, with a line for each combination of method and other keys."""
    rows = {row.label: row.values for row in measures.rows}
    several = any((values["seeds"] or 0) > 1 for values in rows.values())
    spread = ", mean over seeds; bars: standard deviation over seeds" if several else ""
    metric = measures.metric
    caption = f"{metric.heading} of the best window{spread}. A line without markers is a method without this key."
    if any(values["best_window_mean"] is None for values in rows.values()):
        caption += f" Settings with fewer than {WINDOW} evaluated versions have no point."
    return [
        render(
            f"{metric.name}-over-{_file_name(key)}",
            f"{metric.heading} over {key}",
            caption,
            _draw(key, lines_over(sweep, rows, key, metric), metric),
        )
        for key in sweep.keys
    ]


def lines_over(sweep: Sweep, rows: Mapping[str, Values], key: str, metric: MetricInfo = ACCURACY) -> list[Line]:
    """The lines of the figure over ``key``; combinations without a best window are left out."""
    factor = metric.factor
    methods = {point.method for point in sweep.points.values()}
    lines: dict[str, Line] = {}
    for label, point in sweep.points.items():
        mean = rows[label]["best_window_mean"] if label in rows else None
        if mean is None:
            continue
        others = [f"{name} = {value_text(value)}" for name, value in point.values.items() if name != key]
        name = ", ".join([*([point.method] if len(methods) > 1 else []), *others]) or point.method
        line = lines.setdefault(name, Line(name, [], None if key in point.values else factor * mean))
        if key in point.values:
            spread = rows[label]["seed_spread"]
            line.points.append((point.values[key], factor * mean, None if spread is None else factor * spread))
    return list(lines.values())


def sweep_csv(sweep: Sweep, measures: Measures) -> str:
    """A line per combination: the method, a column per swept key, then the columns of ``table.csv``."""
    names = list(measures.rows[0].values)
    lines = [["method", *sweep.keys.values(), *names]]
    for row in measures.rows:
        point = sweep.points[row.label]
        values = [value_text(point.values[key]) if key in point.values else "" for key in sweep.keys]
        lines.append([point.method, *values, *(raw(row.values[name]) for name in names)])
    return csv_text(lines)


def _file_name(key: str) -> str:
    return re.sub(r"[^\w.-]+", "_", key, flags=re.ASCII)


def _draw(key: str, lines: Sequence[Line], metric: MetricInfo) -> Figure:
    figure = Figure(figsize=(9, max(4.8, 0.25 * len(lines))), layout="constrained")
    axes = figure.subplots()
    values = _in_order([value for line in lines for value, _, _ in line.points])
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    for place, (line, style) in enumerate(zip(lines, _line_styles(lines), strict=True)):
        label = escaped(line.label)
        if line.level is not None:
            axes.axhline(line.level, color=style.colour, linestyle=(place, (4, 3)), linewidth=1.5, label=label)
            continue
        x = [value if numeric else values.index(value) for value, _, _ in line.points]
        y, spreads = [mean for _, mean, _ in line.points], [spread for _, _, spread in line.points]
        bars = None if all(spread is None for spread in spreads) else [spread or 0.0 for spread in spreads]
        look: dict[str, Any] = {
            "color": style.colour,
            "marker": style.marker,
            "linewidth": 2,
            "elinewidth": 1,
            "capsize": 3,
        }
        drawn = axes.errorbar(x, y, yerr=bars, label=label, **look)
        drawn[0].set_dashes(style.dashes or (None, None))
    if numeric and values and values[0] > 0 and values[-1] / values[0] > LOG_RATIO:
        axes.set_xscale("log")
    places = values if numeric else range(len(values))
    axes.set_xticks(list(places), [escaped(value_text(value)) for value in values], minor=False)
    axes.set_xticks([], minor=True)
    axes.set(xlabel=key, ylabel=f"test {metric.label}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if len(lines) > 1:
        figure.legend(loc="outside right upper", frameon=False, handlelength=4)
    return figure


def _in_order(values: Sequence[Any]) -> list[Any]:
    """Different values; numbers in ascending order, others as they come."""
    different: list[Any] = []
    for value in values:
        if value not in different:
            different.append(value)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in different):
        return sorted(different)
    return different


def _line_styles(lines: Sequence[Line]) -> list[Style]:
    """Methods keep their own style; other lines get one colour after the other."""
    if all(line.label in KNOWN for line in lines):
        return [KNOWN[line.label] for line in lines]
    return [
        Style(COLOURS[n % len(COLOURS)], DASHES[n // len(COLOURS) % len(DASHES)], MARKERS[n % len(MARKERS)])
        for n in range(len(lines))
    ]


def _texts(point: SweepPoint) -> tuple[tuple[str, str], ...]:
    return tuple((key, value_text(value)) for key, value in point.values.items())
