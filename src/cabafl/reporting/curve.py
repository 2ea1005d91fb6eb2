"""The learning curve of one run."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cabafl.files import write_atomic
from cabafl.recording.events import Evaluated
from cabafl.recording.metrics import WINDOW, best_window_mean, first_evaluations


def draw_curve(rows: Sequence[Evaluated], title: str, path: Path, clock: str = "virtual") -> None:
    """Draws accuracy over virtual or wall time: each evaluation, the moving mean, the best window, the averaged model.

    The file is replaced atomically.
    """
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    times, accuracy = np.array([row.time for row in rows]), np.array([row.accuracy for row in rows])
    first = first_evaluations([row.version for row in rows])
    axes.plot(times, 100 * accuracy, color="0.65", linewidth=1, label="each evaluation")
    best = best_window_mean(accuracy[first].tolist())
    if best is not None:
        means = np.convolve(100 * accuracy[first], np.ones(WINDOW) / WINDOW, mode="valid")
        last = np.cumsum(first) - WINDOW  # number of the window that ends with the version of an evaluation
        label = f"mean of the last {WINDOW} versions"
        axes.plot(times[last >= 0], means[last[last >= 0]], color="tab:blue", linewidth=2, label=label)
        text = f"best window {100 * best[0]:.2f} ± {100 * best[1]:.2f} %"
        axes.axhline(100 * best[0], color="tab:blue", linestyle=":", linewidth=1, label=text)
    if rows[0].averaged_accuracy is not None:
        averaged = np.array([row.averaged_accuracy for row in rows], dtype=np.float64)
        axes.plot(times, 100 * averaged, color="tab:orange", linewidth=2, label="averaged model")
    axes.set(title=title, xlabel=f"{clock} time [s]", ylabel="test accuracy [%]")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    content = io.BytesIO()
    figure.savefig(content, dpi=130, format="png")
    write_atomic(path, content.getvalue())
