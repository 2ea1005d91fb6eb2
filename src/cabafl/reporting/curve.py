"""The learning curve of one run."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cabafl.files import write_atomic
from cabafl.recording.metrics import WINDOW, best_window_mean


def draw_curve(
    times: Sequence[float], accuracy: Sequence[float], title: str, path: Path, clock: str = "virtual"
) -> None:
    """Draws accuracy over virtual or wall time: each evaluation, the moving mean and the best window.

    ``times`` are seconds, ``accuracy`` is 0 to 1. The file is replaced atomically.
    """
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    percent = 100 * np.asarray(accuracy)
    axes.plot(times, percent, color="0.65", linewidth=1, label="each evaluation")
    best = best_window_mean(accuracy)
    if best is not None:
        means = np.convolve(percent, np.ones(WINDOW) / WINDOW, mode="valid")
        axes.plot(times[WINDOW - 1 :], means, color="tab:blue", linewidth=2, label=f"mean of the last {WINDOW}")
        text = f"best window {100 * best[0]:.2f} ± {100 * best[1]:.2f} %"
        axes.axhline(100 * best[0], color="tab:blue", linestyle=":", linewidth=1, label=text)
    axes.set(title=title, xlabel=f"{clock} time [s]", ylabel="test accuracy [%]")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    content = io.BytesIO()
    figure.savefig(content, dpi=130, format="png")
    write_atomic(path, content.getvalue())
