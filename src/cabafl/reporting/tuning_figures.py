"""Figures of a search: its history, the importance of each key, the curves of all trials, the metric over each key."""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from cabafl.recording.metrics import WINDOW, first_evaluations
from cabafl.reporting.figures import RenderedFigure, escaped, render
from cabafl.reporting.series import moving_mean
from cabafl.reporting.styles import COLOURS
from cabafl.reporting.tuning import TrialRow, TunedKey, TuningSummary

BEST = COLOURS[0]
MISSING = 0.97  # height at which trials without the target are marked, as a share of the axes


def tuning_figures(tuning: TuningSummary) -> list[RenderedFigure]:
    """All figures; importances only if there are any."""
    dots = "A dot for each rung that the trial has reached; compare dots of one colour."
    figures = [
        render("history", "History", f"The metric of each trial. {dots}", _history(tuning)),
        render("curves", "Curves", f"{tuning.info.heading} of all trials, first seed.", _curves(tuning)),
        render("keys", "Keys", f"The metric over the values of each key. {dots}", _panels(tuning)),
    ]
    if tuning.importances:
        caption = "How much each key decides whether a trial is among the best (PED-ANOVA)."
        figures.append(render("importance", "Importance", caption, _importance(tuning)))
    return figures


def _colour(tuning: TuningSummary, reached: int) -> Any:
    """Darker blue for a higher rung."""
    top = len(tuning.rungs)
    return mpl.colormaps["Blues"](0.95 if top == 1 else 0.35 + 0.6 * (reached - 1) / (top - 1))


def _legend(figure: Figure, tuning: TuningSummary, more: Sequence[Line2D], line: bool = False) -> None:
    look: dict[str, Any] = {"linewidth": 2} if line else {"linestyle": "", "marker": "o", "markersize": 7}
    handles = []
    for reached in range(len(tuning.rungs), 0, -1):
        count = sum(row.reached == reached if line else row.reached >= reached for row in tuning.rows)
        share = tuning.rungs[reached - 1]
        text = "run in full" if share == "1" else f"{'stopped at' if line else 'after'} {share}"
        if count:
            handles.append(Line2D([], [], color=_colour(tuning, reached), label=f"{text} ({count})", **look))
    figure.legend(handles=[*more, *handles], loc="outside right upper", frameon=False)


def _star() -> Line2D:
    return Line2D([], [], color=BEST, linestyle="", marker="*", markersize=13, label="best")


def _missing(tuning: TuningSummary) -> list[Line2D]:
    if tuning.cost is None or all(tuning.value(row) is not None for row in tuning.rows if row.reached):
        return []
    label = f"{tuning.target:g}{tuning.info.unit} not reached"
    return [Line2D([], [], color="0.4", linestyle="", marker="x", markersize=7, label=label)]


def _dots(axes: Any, tuning: TuningSummary, rows: Sequence[TrialRow], x: Sequence[float]) -> None:
    """A dot per trial and rung; a cross at the top for a trial without the target; a star for the best."""
    for row, place in sorted(zip(rows, x, strict=True), key=lambda pair: pair[0].reached):
        if not row.reached:
            continue
        values = tuning.values(row)
        if not values:
            colour = _colour(tuning, row.reached)
            axes.plot(place, MISSING, "x", color=colour, markersize=7, transform=axes.get_xaxis_transform())
        axes.plot([place] * len(values), list(values.values()), color="0.75", linewidth=1, zorder=1)
        for reached, value in values.items():
            if row is tuning.best and reached == row.reached:
                axes.plot(place, value, "*", color=BEST, markersize=15, markeredgecolor="white", zorder=5)
            else:
                look = {"markersize": 7, "markeredgecolor": "0.35", "markeredgewidth": 0.5}
                axes.plot(place, value, "o", color=_colour(tuning, reached), zorder=2 + reached / 10, **look)


def _tidy(axes: Any) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _history(tuning: TuningSummary) -> Figure:
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    rows = sorted(tuning.rows, key=lambda row: row.number)
    _dots(axes, tuning, rows, [row.number for row in rows])
    better = max if tuning.cost is None and tuning.info.more_is_better else min
    whole = [
        (row.number, value) for row in rows if row.state == "finished" and (value := tuning.value(row)) is not None
    ]
    more = [_star(), *_missing(tuning)]
    if whole:
        best = [better(value for _, value in whole[: place + 1]) for place in range(len(whole))]
        numbers = [number for number, _ in whole]
        axes.step([*numbers, rows[-1].number], [*best, best[-1]], where="post", color=BEST, linewidth=1.5, zorder=0)
        more.insert(1, Line2D([], [], color=BEST, linewidth=1.5, label="best so far"))
    axes.set(xlabel="trial", ylabel=tuning.label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _tidy(axes)
    _legend(figure, tuning, more)
    return figure


def _curves(tuning: TuningSummary) -> Figure:
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    for row in sorted(tuning.rows, key=lambda row: (row is tuning.best, row.reached)):
        if not row.reached:
            continue
        times = [each.time for each in row.curve]
        first = first_evaluations([each.version for each in row.curve])
        values = tuning.info.factor * np.array([each.value for each in row.curve])
        means = moving_mean(values[first])[np.cumsum(first) - 1]
        best = row is tuning.best
        colour = BEST if best else _colour(tuning, row.reached)
        axes.plot(times, means, color=colour, linewidth=2.5 if best else 1.2, alpha=1 if best else 0.8)
    for seconds in tuning.rung_seconds[:-1]:
        axes.axvline(seconds, color="0.5", linewidth=0.8, linestyle=(0, (4, 3)))
    if tuning.cost is not None:
        axes.axhline(tuning.target, color="0.5", linewidth=0.8, linestyle=":")
    axes.set(xlabel="virtual time [s]", ylabel=f"test {tuning.info.label}, mean of {WINDOW} versions")
    axes.set_xlim(0, tuning.rung_seconds[-1])
    _tidy(axes)
    _legend(figure, tuning, [Line2D([], [], color=BEST, linewidth=2.5, label="best")], line=True)
    return figure


def _panels(tuning: TuningSummary) -> Figure:
    columns = min(3, len(tuning.keys))
    lines = math.ceil(len(tuning.keys) / columns)
    figure = Figure(figsize=(max(9, 3.4 * columns + 2), 0.6 + 3.2 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False).flat
    for place, axes in enumerate(grid):
        if place >= len(tuning.keys):
            axes.set_visible(False)
            continue
        _over_key(axes, tuning, tuning.keys[place])
    figure.supylabel(tuning.label, fontsize=10)
    _legend(figure, tuning, [_star(), *_missing(tuning)])
    return figure


def _over_key(axes: Any, tuning: TuningSummary, key: TunedKey) -> None:
    values = [row.values[key.key] for row in tuning.rows]
    if key.choices:
        axes.set_xticks(range(len(key.choices)), [escaped(text) for text in key.choices])
        axes.set_xlim(-0.5, len(key.choices) - 0.5)
        values = [key.choices.index(value) for value in values]
    elif key.log:
        axes.set_xscale("log")
    _dots(axes, tuning, tuning.rows, values)
    axes.set_xlabel(escaped(key.key))
    _tidy(axes)


def _importance(tuning: TuningSummary) -> Figure:
    names = list(tuning.importances)[::-1]
    shares = [100 * tuning.importances[name] for name in names]
    figure = Figure(figsize=(9, 1.2 + 0.45 * len(names)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh([escaped(name) for name in names], shares, color=COLOURS[2], height=0.6)
    axes.bar_label(bars, [f"{share:.0f} %" for share in shares], padding=4)
    axes.set_xlim(0, max(1.0, 1.12 * max(shares)))
    axes.set_xlabel("importance: share in what makes a trial one of the best [%]")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
