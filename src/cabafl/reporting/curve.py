"""The learning curve of one run."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cabafl.files import write_atomic
from cabafl.recording.events import Evaluated
from cabafl.recording.metrics import WINDOW, best_window_mean, first_evaluations


class CurveFigure(Figure):
    """A figure that a notebook shows, also if nobody has imported pyplot there."""

    def _repr_png_(self) -> bytes:
        return as_png(self)


def draw_curve(rows: Sequence[Evaluated], title: str, path: Path, clock: str = "virtual") -> None:
    """Draws the learning curve into a file, which is replaced atomically."""
    write_atomic(path, as_png(learning_curve(rows, title, clock)))


def as_png(figure: Figure) -> bytes:
    """The content of an image file."""
    content = io.BytesIO()
    figure.savefig(content, dpi=130, format="png")
    return content.getvalue()


def learning_curve(rows: Sequence[Evaluated], title: str, clock: str = "virtual") -> Figure:
    """The metric over time: each evaluation, the moving mean, the best window, the averaged model."""
    figure = CurveFigure(figsize=(7.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    metric, times = rows[0].metric, np.array([row.time for row in rows])
    values = np.array([row.value for row in rows])
    first = first_evaluations([row.version for row in rows])
    axes.plot(times, metric.factor * values, color="0.65", linewidth=1, label="each evaluation")
    best = best_window_mean(values[first].tolist(), more_is_better=metric.more_is_better)
    if best is not None and math.isfinite(best[0]):
        means = np.convolve(metric.factor * values[first], np.ones(WINDOW) / WINDOW, mode="valid")
        last = np.cumsum(first) - WINDOW  # number of the window that ends with the version of an evaluation
        label = f"mean of the last {WINDOW} versions"
        axes.plot(times[last >= 0], means[last[last >= 0]], color="tab:blue", linewidth=2, label=label)
        text = f"best window {metric.text(best[0])} ± {metric.text(best[1])}{metric.unit}"
        axes.axhline(metric.factor * best[0], color="tab:blue", linestyle=":", linewidth=1, label=text)
    if rows[0].averaged_value is not None:
        averaged = np.array([row.averaged_value for row in rows], dtype=np.float64)
        axes.plot(times, metric.factor * averaged, color="tab:orange", linewidth=2, label="averaged model")
    axes.set(title=title, xlabel=f"{clock} time [s]", ylabel=f"test {metric.label}")
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right" if metric.more_is_better else "upper right")
    return figure
