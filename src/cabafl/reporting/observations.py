"""The two observations as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cabafl.reporting.picture import save

GREYS = ("0.15", "0.4", "0.6", "0.75", "0.88", "0.95")
MARKERS = ("o", "s", "^", "D", "v", "P")


class Similarities(Protocol):
    """Rows are draws."""

    @property
    def name(self) -> str: ...

    @property
    def parts(self) -> npt.NDArray[np.float64]: ...

    @property
    def unions(self) -> npt.NDArray[np.float64]: ...


def draw_observations(settings: Sequence[Similarities], title: str, path: Path) -> None:
    """Left: how similar each part is to the whole; right: how unions of the unbalanced parts grow towards it."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_parts(left, settings)
    for setting, marker, colour in zip(settings, MARKERS * 2, ("C0", "C1", "C2", "C3", "C4", "C5") * 2, strict=False):
        count = setting.unions.shape[1]
        mean, deviation = setting.unions.mean(axis=0), setting.unions.std(axis=0)
        right.errorbar(range(1, count + 1), mean, deviation, marker=marker, color=colour, capsize=3, label=setting.name)
    right.set(xlabel="unbalanced parts in the union", ylabel="cosine to the whole", xticks=range(1, count + 1))
    right.set_title("unions of D1 to D5")
    right.legend()
    right.grid(alpha=0.3)
    figure.suptitle(title)
    save(figure, path)


def _draw_parts(axes: object, settings: Sequence[Similarities]) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    width = 0.8 / settings[0].parts.shape[1]
    lowest = 1.0
    for part in range(settings[0].parts.shape[1]):
        means = [float(setting.parts[:, part].mean()) for setting in settings]
        errors = [float(setting.parts[:, part].std()) for setting in settings]
        places = np.arange(len(settings)) + (part - settings[0].parts.shape[1] / 2 + 0.5) * width
        label = "D0 (balanced)" if part == 0 else f"D{part}"
        axes.bar(places, means, width, yerr=errors, color=GREYS[part], edgecolor="0.2", label=label, capsize=2)
        lowest = min(lowest, *(m - e for m, e in zip(means, errors, strict=True)))
    axes.set_xticks(range(len(settings)), [setting.name for setting in settings], fontsize=8, wrap=True)
    axes.set(ylim=(max(0.0, lowest - 0.3 * (1 - lowest)), 1.002), ylabel="cosine to the whole", title="parts")
    axes.legend(ncols=3, fontsize=8, loc="lower left")
    axes.grid(axis="y", alpha=0.3)
