"""Draws a partition: how many samples of each class each device holds."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from cabafl.data.dataset import Partition
from cabafl.reporting.figure_file import save_figure

MAX_DEVICES = 1500  # about one pixel each; of larger fleets, evenly spaced devices are drawn


def draw_partition(partition: Partition, labels: NDArray[Any] | Tensor, classes: int, title: str, path: Path) -> None:
    """Draws a heat map of sample counts, devices from left to right and classes from bottom to top, below a bar chart
    of the device sizes."""
    shown = np.arange(len(partition))
    if len(partition) > MAX_DEVICES:
        shown = np.linspace(0, len(partition) - 1, MAX_DEVICES).astype(np.int64)
        title = f"{title}, {MAX_DEVICES} of {len(partition)} devices shown"
    counts = class_counts(partition, np.asarray(labels), classes)[shown]
    figure = Figure(figsize=(12, 2.8 + min(max(0.22 * classes, 2.5), 9)), layout="constrained")
    heights = [1, min(max(0.16 * classes, 2.5), 6)]
    bars, heat = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": heights})
    if len(shown) <= 150:
        bars.bar(np.arange(len(shown)), partition.sizes[shown], width=0.85, color="#5b6b7b")
    else:
        bars.stairs(partition.sizes[shown], np.arange(len(shown) + 1) - 0.5, fill=True, color="#5b6b7b")
    bars.set_ylabel("samples")
    bars.set_title(title)
    bars.spines[["top", "right"]].set_visible(False)
    image = heat.imshow(
        np.ma.masked_equal(counts.T, 0),  # no samples: white
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        cmap="viridis_r",
        norm=PowerNorm(0.5, vmin=0, vmax=max(int(counts.max()), 1)),
    )
    heat.set_xlabel("device")
    heat.set_ylabel("class")
    heat.yaxis.set_major_locator(MaxNLocator(nbins=12, steps=[1, 2, 5, 10], integer=True))
    heat.xaxis.set_major_locator(MaxNLocator(nbins=15, steps=[1, 2, 5, 10], integer=True))
    heat.set_xlim(-0.5, len(shown) - 0.5)
    figure.colorbar(image, ax=heat, label="samples of the class (white: none)", pad=0.01)
    save_figure(figure, path)


def class_counts(partition: Partition, labels: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """Returns the number of samples of each class on each device, shape (devices, classes)."""
    device = np.repeat(np.arange(len(partition)), partition.sizes)
    cells = device * classes + labels[partition.indices]
    return np.bincount(cells, minlength=len(partition) * classes).reshape(len(partition), classes)
