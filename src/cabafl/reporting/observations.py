"""Draws the paper's observations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cabafl.reporting.figure_file import save_figure

GREYS = ("0.15", "0.4", "0.6", "0.75", "0.88", "0.95")
MARKERS = ("o", "s", "^", "D", "v", "P")


class Similarities(Protocol):
    """Cosines to the feature of all data, one row per draw: see `comparison.observe.SplitSimilarities`."""

    @property
    def name(self) -> str: ...

    @property
    def parts(self) -> npt.NDArray[np.float64]: ...

    @property
    def unions(self) -> npt.NDArray[np.float64]: ...


def draw_observations(splits: Sequence[Similarities], title: str, path: Path) -> None:
    """Draws the cosine to the whole, with the deviation over draws: left of each part, right of growing unions."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_parts(left, splits)
    for split, marker, colour in zip(splits, MARKERS * 2, ("C0", "C1", "C2", "C3", "C4", "C5") * 2, strict=False):
        count = split.unions.shape[1]
        mean, deviation = split.unions.mean(axis=0), split.unions.std(axis=0)
        right.errorbar(range(1, count + 1), mean, deviation, marker=marker, color=colour, capsize=3, label=split.name)
    right.set(xlabel="unbalanced parts in the union", ylabel="cosine to the whole", xticks=range(1, count + 1))
    right.set_title("unions of D1 to D5")
    right.legend()
    right.grid(alpha=0.3)
    figure.suptitle(title)
    save_figure(figure, path)


def _draw_parts(axes: Any, splits: Sequence[Similarities]) -> None:
    count = splits[0].parts.shape[1]
    width = 0.8 / count
    lowest = 1.0
    for part in range(count):
        means = [float(split.parts[:, part].mean()) for split in splits]
        errors = [float(split.parts[:, part].std()) for split in splits]
        places = np.arange(len(splits)) + (part - count / 2 + 0.5) * width
        label = "D0 (balanced)" if part == 0 else f"D{part}"
        axes.bar(places, means, width, yerr=errors, color=GREYS[part], edgecolor="0.2", label=label, capsize=2)
        lowest = min(lowest, *(m - e for m, e in zip(means, errors, strict=True)))
    axes.set_xticks(range(len(splits)), [split.name for split in splits], fontsize=8, wrap=True)
    axes.set(ylim=(max(0.0, lowest - 0.3 * (1 - lowest)), 1.002), ylabel="cosine to the whole", title="parts")
    axes.legend(ncols=3, fontsize=8, loc="lower left")
    axes.grid(axis="y", alpha=0.3)
