"""The figures: learning curves in panels, selections per device, similarities of features."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cabafl.comparison.observe import SplitSimilarities
from cabafl.paper.artefact import Entry
from cabafl.paper.definitions import SettingName, settings
from cabafl.reporting.figures import AVERAGE, RenderedFigure, draw_series, escaped, render
from cabafl.reporting.series import axis_names, series
from cabafl.reporting.styles import COLOURS, DASHES, KNOWN, MARKERS, Style, styles
from cabafl.reproduction.values import MeasuredArtefact

MAX_COLUMNS = 3
GREYS = ("0.15", "0.45", "0.58", "0.7", "0.8", "0.9")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def curves(measured: MeasuredArtefact) -> RenderedFigure:
    """One panel per row, or one per axis where the artefact has several; one line per column."""
    table = measured.table
    panels = [(row, axis) for row in table.rows for axis in table.artefact.axes]
    columns = 2 if len(panels) in (2, 4) else min(len(panels), MAX_COLUMNS)
    lines = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(max(4.6 * columns, 7), 0.9 + 3.2 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False).flat
    line_styles = _styles([column.id for column in table.columns])
    names = axis_names([run for runs in measured.runs.values() for run in runs])
    shown: dict[str, Any] = {}
    for place, axes in enumerate(grid):
        if place >= len(panels):
            axes.set_visible(False)
            continue
        row, axis = panels[place]
        shown |= _panel(axes, measured, row, axis, line_styles)
        title = panel_title(row, table.rows) if len(table.artefact.axes) == 1 else names[axis].partition(" [")[0]
        axes.set_title(f"({LETTERS[place]}) {title}" if len(panels) > 1 else title, fontsize=10)
        axes.set(xlabel=names[axis], ylabel="test accuracy [%]")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    if shown:
        figure.legend(shown.values(), shown, loc="outside lower center", ncols=min(len(shown), 7), frameon=False)
    return render("figure", f"{table.artefact.number}: {table.artefact.title}", "", figure)


def _panel(
    axes: Any, measured: MeasuredArtefact, row: Entry, axis: str, line_styles: Mapping[str, Style]
) -> dict[str, Any]:
    """Draws the lines of a panel; returns label -> line."""
    drawn = {}
    columns = measured.table.columns
    for place, column in enumerate(columns):
        runs = measured.runs.get((row.id, column.id))
        if runs:
            label = escaped(column.scaled(measured.table.scale).label or column.label or column.id)
            draw_series(axes, series(runs, axis), line_styles[column.id], label, place / len(columns))
            drawn[label] = axes.get_lines()[-1]
    if drawn:
        axes.set_xlim(0, axes.dataLim.x1 or None)
    else:
        axes.text(0.5, 0.5, "no finished run", ha="center", va="center", transform=axes.transAxes, color="0.5")
    return drawn


def panel_title(row: Entry, rows: Sequence[Entry]) -> str:
    """The row's label, or that of its heterogeneity, after the data set if that differs between the rows."""
    if row.label:
        return row.label
    known, names = settings(), [SettingName.parse(each.setting or "") for each in (row, *rows)]
    spread = known.heterogeneity[names[0].heterogeneity].label
    return spread if len({name.data for name in names}) == 1 else f"{known.data[names[0].data].label}, {spread}"


def _styles(names: Sequence[str]) -> dict[str, Style]:
    """Methods and variants look as in every report; values of a key get one colour after the other."""
    if all(name in KNOWN or ":" in name for name in names):
        return styles(names)
    return {
        name: Style(COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)])
        for i, name in enumerate(names)
    }


def selections(measured: MeasuredArtefact) -> RenderedFigure:
    """How often each device was selected, devices in the order of their counts; one panel per column."""
    table = measured.table
    row, columns = table.rows[0].id, [c for c in table.columns if (table.rows[0].id, c.id) in measured.runs]
    figure = Figure(figsize=(max(3.8 * len(columns), 6), 3.4), layout="constrained")
    grid = figure.subplots(1, max(len(columns), 1), squeeze=False, sharey=True).flat
    line_styles = _styles([column.id for column in table.columns])
    for axes, column in zip(grid, columns, strict=False):
        run = measured.runs[row, column.id][0]
        devices = 1 + max(run.counts.selections, default=0)
        counts = np.array([run.counts.selections[device] for device in range(devices)])
        axes.stairs(counts, np.arange(devices + 1) - 0.5, fill=True, color=line_styles[column.id].colour)
        axes.axhline(counts.mean(), **AVERAGE)
        axes.set_title(f"{escaped(column.label)}: {counts.min():,} to {counts.max():,}", fontsize=10)
        axes.set(xlabel="device", xlim=(-0.5, devices - 0.5))
        axes.spines[["top", "right"]].set_visible(False)
    grid[0].set_ylabel("selections")
    return render("figure", f"{table.artefact.number}: {table.artefact.title}", "", figure)


def similarities(title: str, splits: Sequence[SplitSimilarities], with_unions: bool) -> RenderedFigure:
    """Bars of the cosine to all data: above of each part, below of growing unions; one column per split."""
    lines = 2 if with_unions else 1
    figure = Figure(figsize=(max(3.6 * len(splits), 5), 3.2 * lines), layout="constrained")
    grid = figure.subplots(lines, len(splits), squeeze=False, sharey="row")
    for place, split in enumerate(splits):
        parts = [f"D{i}" for i in range(split.parts.shape[1])]
        _bars(grid[0][place], parts, split.parts, f"({LETTERS[place]}) {split.name}" if with_unions else split.name)
        if with_unions:
            unions = ["D1", *(f"D1–{i}" for i in range(2, split.unions.shape[1] + 1))]
            letters = f"({LETTERS[len(splits) + place]}) combinations for ({LETTERS[place]})"
            _bars(grid[1][place], unions, split.unions, letters)
    for row, values in zip(grid, ([s.parts for s in splits], [s.unions for s in splits]), strict=False):
        lowest = min(float((each.mean(axis=0) - each.std(axis=0)).min()) for each in values)
        row[0].set_ylim(max(0.0, lowest - 0.3 * (1 - lowest)), 1.0 + 0.1 * (1 - lowest))
        row[0].set_ylabel("cosine to all data")
    return render("figure", title, "", figure)


def _bars(axes: Any, labels: Sequence[str], values: Any, title: str) -> None:
    means, errors = values.mean(axis=0), values.std(axis=0)
    axes.bar(labels, means, yerr=errors, color=GREYS[: len(labels)], edgecolor="0.2", capsize=3)
    axes.set_title(title, fontsize=10)
    axes.grid(axis="y", alpha=0.3)
