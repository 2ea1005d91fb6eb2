"""Figures of a comparison, each as PNG and SVG."""

import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from cabafl.recording.metrics import WINDOW
from cabafl.reporting.runs import Run, by_label, metric_of
from cabafl.reporting.series import Series, axis_names, series
from cabafl.reporting.styles import Style
from cabafl.reporting.timeline import draw_timeline

Groups = Mapping[str, Sequence[Run]]
MAX_BARS = 60
OUTLINE = withStroke(linewidth=2.5, foreground="white")  # makes the line visible on dark bars
AVERAGE: dict[str, Any] = {"color": "0.1", "linewidth": 1, "linestyle": (0, (4, 3)), "path_effects": [OUTLINE]}


class RenderedFigure(NamedTuple):
    """A figure as file contents; ``name`` is the file name without suffix."""

    name: str
    title: str
    caption: str
    png: bytes
    svg: bytes


def render_figures(runs: Sequence[Run], line_styles: Mapping[str, Style]) -> list[RenderedFigure]:
    """All figures of a report, in the order of the page."""
    groups = by_label(runs)
    several = any(len(group) > 1 for group in groups.values())
    over_seeds = ", averaged over seeds; the band spans the seeds" if several else ""
    caption = f"Mean of the last {WINDOW} evaluated versions{over_seeds}."
    first = {label: group[0] for label, group in groups.items()}
    seed = f"Seed {next(iter(first.values())).seed}."
    rendered, metric = [], metric_of(runs)
    for axis, name in axis_names(runs).items():
        title = f"{metric.heading} over {name.partition(' [')[0]}"
        rendered.append(render(f"{metric.name}-{axis}", title, caption, _curves(groups, line_styles, axis, name)))
    if all("devices" in run.summary for run in runs):
        caption = "The last model on the devices' own samples, from the worst device to the best. All seeds."
        rendered.append(render("devices", "What each device gets", caption, _devices(groups, line_styles)))
    caption = f"How often each device was selected; the line is the mean. {seed}"
    rendered.append(render("selections", "Selections per device", caption, _selections(first, line_styles)))
    figure, caption = draw_timeline(first)
    rendered.append(render("timeline", "Device timeline", f"{caption} {seed}", figure))
    caption = "Share of uploads by the number of global models published during their training. All seeds."
    rendered.append(render("staleness", "Staleness of uploads", caption, _staleness(groups, line_styles)))
    return rendered


def render(name: str, title: str, caption: str, figure: Figure) -> RenderedFigure:
    """Draws a figure in both formats. Equal runs give equal bytes: the files contain no date and no random IDs."""
    FigureCanvasAgg(figure)
    png, svg = io.BytesIO(), io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "cabafl", "svg.fonttype": "path"}):
        figure.savefig(png, format="png", dpi=130, metadata={"Software": None})
        figure.set_layout_engine("none")  # the layout has been computed
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return RenderedFigure(name, title, caption, png.getvalue(), svg.getvalue())


def _curves(groups: Groups, line_styles: Mapping[str, Style], axis: str, name: str) -> Figure:
    figure = Figure(figsize=(9, max(4.8, 0.25 * len(groups))), layout="constrained")  # room for the legend
    axes = figure.subplots()
    for place, (label, group) in enumerate(groups.items()):
        draw_series(axes, series(group, axis), line_styles[label], escaped(label), place / len(groups))
    axes.set(xlabel=name, ylabel=f"test {next(iter(groups.values()))[0].metric.label}")
    axes.set_xlim(0, axes.dataLim.x1 if 0 < axes.dataLim.x1 < math.inf else None)
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, handlelength=4)
    return figure


def _devices(groups: Groups, line_styles: Mapping[str, Style]) -> Figure:
    figure = Figure(figsize=(9, max(4.8, 0.25 * len(groups))), layout="constrained")
    axes = figure.subplots()
    metric = next(iter(groups.values()))[0].metric
    for label, group in groups.items():
        values = np.sort(np.concatenate([run.summary["devices"]["values"] for run in group]))
        values = values[np.isfinite(values)]
        worst_first = metric.factor * (values if metric.more_is_better else values[::-1])
        share = 100 * (np.arange(len(values)) + 0.5) / len(values)
        axes.plot(share, worst_first, color=line_styles[label].colour, linewidth=2, label=escaped(label))
    axes.set(xlabel="share of the devices that have this or worse [%]", ylabel=metric.label, xlim=(0, 100))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, handlelength=4)
    return figure


def draw_series(axes: Any, curve: Series, style: Style, label: str, offset: float) -> None:
    """``offset`` (0 to 1) shifts the markers, so that those of different methods do not overlap."""
    every = max(1, len(curve.x) // 8)
    dashes = {"dashes": style.dashes} if style.dashes else {}
    axes.plot(
        curve.x,
        curve.mean,
        color=style.colour,
        linewidth=2,
        marker=style.marker,
        markersize=5,
        markevery=(int(offset * every), every),
        label=label,
        **dashes,
    )
    if curve.seeds > 1:
        axes.fill_between(curve.x, curve.low, curve.high, color=style.colour, alpha=0.12, linewidth=0)


def _selections(runs: Mapping[str, Run], line_styles: Mapping[str, Style]) -> Figure:
    devices = 1 + max((max(run.counts.selections, default=0) for run in runs.values()), default=0)

    def draw(axes: Any, label: str) -> str:
        counts = np.array([runs[label].counts.selections[device] for device in range(devices)])
        axes.stairs(counts, np.arange(devices + 1) - 0.5, fill=True, color=line_styles[label].colour)
        axes.axhline(counts.mean(), **AVERAGE)
        return f"{counts.min():,} to {counts.max():,}"

    figure, grid = _panels(list(runs), draw, "device", "selections", share_y=True)
    for axes in grid:
        axes.set_xlim(-0.5, devices - 0.5)
    return figure


def _staleness(groups: Groups, line_styles: Mapping[str, Style]) -> Figure:
    counts = {
        label: sum((run.counts.staleness for run in group), start=Counter[int]()) for label, group in groups.items()
    }
    top = max((max(c, default=0) for c in counts.values()), default=0)
    width = math.ceil((top + 1) / MAX_BARS)
    edges = np.arange(0, top + 1 + width, width)

    def draw(axes: Any, label: str) -> str:
        found = counts[label]
        total = sum(found.values())
        if not total:
            return "no uploads"
        heights, _ = np.histogram(list(found), edges, weights=list(found.values()))
        axes.bar(edges[:-1] + (width - 1) / 2, 100 * heights / total, 0.9 * width, color=line_styles[label].colour)
        mean = sum(s * n for s, n in found.items()) / total
        axes.axvline(mean, **AVERAGE)
        return f"mean {mean:.2f}, at most {max(found)}"

    figure, grid = _panels(list(groups), draw, "staleness", "share of uploads [%]", share_y=False)
    grid[0].set_xlim(-0.6, max(top, 4) + 0.6)
    return figure


def _panels(
    labels: Sequence[str], draw: Callable[[Any, str], str], x: str, y: str, share_y: bool
) -> tuple[Figure, list[Any]]:
    """Draws one panel per method in up to three columns; ``draw`` returns what to add to the panel's title."""
    columns = min(len(labels), 3)
    rows = math.ceil(len(labels) / columns)
    figure = Figure(figsize=(max(4.0 * columns, 9), 0.6 + 2.3 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=share_y, squeeze=False).flat
    shown = []
    for place, axes in enumerate(grid):
        if place >= len(labels):
            axes.set_visible(False)
            continue
        added = draw(axes, labels[place])
        axes.set_title(f"{escaped(labels[place])}: {added}", fontsize=9, wrap=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.tick_params(labelbottom=place + columns >= len(labels))
        shown.append(axes)
    figure.supxlabel(x, fontsize=10)
    figure.supylabel(y, fontsize=10)
    return figure, shown


def escaped(label: str) -> str:
    """Shortens a long label and escapes dollar signs, which would start a formula."""
    short = label if len(label) <= 32 else label[:31] + "…"
    return short.replace("$", r"\$")
