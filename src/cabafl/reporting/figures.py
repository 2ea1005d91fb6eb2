"""Pictures of a comparison, each as PNG and SVG."""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from cabafl.recording.metrics import WINDOW
from cabafl.reporting.runs import Run, by_label
from cabafl.reporting.series import Series, axis_names, series
from cabafl.reporting.styles import Style, styles
from cabafl.reporting.timeline import draw_timeline

Groups = Mapping[str, Sequence[Run]]
MOST_BARS = 60
OUTLINE = withStroke(linewidth=2.5, foreground="white")  # so that a line shows on dark bars
AVERAGE: dict[str, Any] = {"color": "0.1", "linewidth": 1, "linestyle": (0, (4, 3)), "path_effects": [OUTLINE]}


class Picture(NamedTuple):
    """A finished picture; ``about`` is what to know in order to read it."""

    name: str
    title: str
    about: str
    png: bytes
    svg: bytes


def draw_pictures(runs: Sequence[Run]) -> list[Picture]:
    """All pictures of a report, in its order."""
    groups = by_label(runs)
    looks = styles(list(groups))
    several = any(len(group) > 1 for group in groups.values())
    band = "; the band spans the seeds" if several else ""
    about = f"Mean of the last {WINDOW} evaluations{', averaged over seeds' if several else ''}{band}."
    first = {label: group[0] for label, group in groups.items()}
    seed = f"Seed {next(iter(first.values())).seed}."
    pictures = [
        _picture(
            f"accuracy-{axis}", f"Accuracy over {name.partition(' [')[0]}", about, _curves(groups, looks, axis, name)
        )
        for axis, name in axis_names(runs).items()
    ]
    text = f"How often each device was given a model; the line is an even share. {seed}"
    pictures.append(_picture("selections", "Selections per device", text, _selections(first, looks)))
    figure, text = draw_timeline(first)
    pictures.append(_picture("timeline", "Who trains what when", f"{text} {seed}", figure))
    text = "Share of the uploads by the number of global models published while they were trained. All seeds."
    pictures.append(_picture("staleness", "Staleness of the uploads", text, _staleness(groups, looks)))
    return pictures


def _picture(name: str, title: str, about: str, figure: Figure) -> Picture:
    """Equal runs give equal bytes: no date, no random names inside."""
    FigureCanvasAgg(figure)
    png, svg = io.BytesIO(), io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "cabafl", "svg.fonttype": "path"}):
        figure.savefig(png, format="png", dpi=130, metadata={"Software": None})
        figure.set_layout_engine("none")  # everything has its place now
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return Picture(name, title, about, png.getvalue(), svg.getvalue())


def _curves(groups: Groups, looks: Mapping[str, Style], axis: str, name: str) -> Figure:
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    for place, (label, group) in enumerate(groups.items()):
        _draw_series(axes, series(group, axis), looks[label], _plain(label), place / len(groups))
    axes.set(xlabel=name, ylabel="test accuracy [%]")
    axes.set_xlim(0, axes.dataLim.x1 or None)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, handlelength=4)
    return figure


def _draw_series(axes: Any, curve: Series, look: Style, label: str, offset: float) -> None:
    """Few markers per line, at other places for every method, so that they do not hide each other."""
    every = max(1, len(curve.x) // 8)
    dashes = {"dashes": look.dashes} if look.dashes else {}
    axes.plot(
        curve.x,
        curve.mean,
        color=look.colour,
        linewidth=2,
        marker=look.marker,
        markersize=5,
        markevery=(int(offset * every), every),
        label=label,
        **dashes,
    )
    if curve.seeds > 1:
        axes.fill_between(curve.x, curve.low, curve.high, color=look.colour, alpha=0.12, linewidth=0)


def _selections(runs: Mapping[str, Run], looks: Mapping[str, Style]) -> Figure:
    devices = 1 + max((max(run.counts.selections, default=0) for run in runs.values()), default=0)

    def draw(axes: Any, label: str) -> str:
        counts = np.array([runs[label].counts.selections[device] for device in range(devices)])
        axes.stairs(counts, np.arange(devices + 1) - 0.5, fill=True, color=looks[label].colour)
        axes.axhline(counts.mean(), **AVERAGE)
        return f"{counts.min():,} to {counts.max():,}"

    figure, grid = _panels(list(runs), draw, "device", "selections", share_y=True)
    for axes in grid:
        axes.set_xlim(-0.5, devices - 0.5)
    return figure


def _staleness(groups: Groups, looks: Mapping[str, Style]) -> Figure:
    counts = {
        label: sum((run.counts.staleness for run in group), start=type(group[0].counts.staleness)())
        for label, group in groups.items()
    }
    top = max((max(c, default=0) for c in counts.values()), default=0)
    width = math.ceil((top + 1) / MOST_BARS)
    edges = np.arange(0, top + 1 + width, width)

    def draw(axes: Any, label: str) -> str:
        found = counts[label]
        total = sum(found.values())
        if not total:
            return "no uploads"
        heights, _ = np.histogram(list(found), edges, weights=list(found.values()))
        axes.bar(edges[:-1] + (width - 1) / 2, 100 * heights / total, 0.9 * width, color=looks[label].colour)
        mean = sum(s * n for s, n in found.items()) / total
        axes.axvline(mean, **AVERAGE)
        return f"mean {mean:.2f}, at most {max(found)}"

    figure, grid = _panels(list(groups), draw, "staleness", "share of uploads [%]", share_y=False)
    grid[0].set_xlim(-0.6, max(top, 4) + 0.6)
    return figure


def _panels(
    labels: Sequence[str], draw: Callable[[Any, str], str], x: str, y: str, share_y: bool
) -> tuple[Figure, list[Any]]:
    """Small pictures side by side, one per method; ``draw`` returns what to add to the title."""
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
        axes.set_title(f"{_plain(labels[place])}: {added}", fontsize=9, wrap=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.tick_params(labelbottom=place + columns >= len(labels))
        shown.append(axes)
    figure.supxlabel(x, fontsize=10)
    figure.supylabel(y, fontsize=10)
    return figure, shown


def _plain(label: str) -> str:
    """Dollar signs are no formulas, and a very long label must leave room for the picture."""
    short = label if len(label) <= 32 else label[:31] + "…"
    return short.replace("$", r"\$")
