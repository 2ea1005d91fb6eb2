"""Time of the server's two expensive operations: one device selection of CaBaFL and one aggregation."""

import numpy as np
import torch

from cabafl.bench import aggregation
from cabafl.bench.report import BenchSection, BenchTable
from cabafl.bench.timing import Spread, seconds
from cabafl.methods.cabafl.selector import FeatureTable, balance_scores, best_device
from cabafl.rng import rng

Sizes = list[tuple[int, int, int]]  # devices, length of a feature vector, slots
SELECTIONS: Sizes = [
    *((devices, 512, 10) for devices in (100, 1_000, 10_000, 100_000)),
    (10_000, 84, 10),
    (10_000, 2_048, 10),
    (10_000, 512, 100),
]
AGGREGATIONS = [(62_006, 10), (62_006, 50), (11_000_000, 10), (11_000_000, 50)]


def measure(devices: int, width: int, slots: int = 10, repetitions: int = 50) -> Spread:
    """Milliseconds to score all devices except ``slots`` and select the best."""
    torch.set_num_threads(1)
    draw = rng(1, "bench selection", devices, width)
    features = FeatureTable()
    features.replace(draw.random((devices, width), dtype=np.float32))
    samples = draw.integers(10, 500, devices)
    sizes = draw.integers(100, 5000, slots).astype(np.float64)
    candidates = np.sort(draw.permutation(devices)[slots:])

    def select(trace: list[int]) -> None:
        similarity, spread = balance_scores(features, trace, sizes, 0, candidates, samples)
        best_device(candidates, similarity - spread)

    traces = [draw.integers(0, devices, 5).tolist() for _ in range(repetitions + 3)]
    times = [1e3 * seconds(lambda trace=trace: select(trace)) for trace in traces]  # type: ignore[misc]
    return Spread.of(times[3:])


def section(
    selections: Sizes | None = None, aggregations: list[tuple[int, int]] | None = None, repetitions: int = 50
) -> BenchSection:
    """Measures both for growing N, d and K."""
    rows, figures = [], []
    for devices, width, slots in selections or SELECTIONS:
        time = measure(devices, width, slots, repetitions)
        rows.append((f"{devices:,}", f"{width:,}", str(slots), time.text()))
        figures.append({"N": devices, "d": width, "K": slots, "milliseconds": time.figures()})
    means = max(3, repetitions // 10)
    aggregated, more = aggregation.table(AGGREGATIONS if aggregations is None else aggregations, means)
    return BenchSection(
        "selection",
        "Selection and aggregation",
        [BenchTable("One device selection", ("devices N", "feature length d", "slots K", "ms"), rows), aggregated],
        [
            "Selection: all devices except K are candidates, the model has visited 5 devices; one thread.",
            f"{repetitions} selections, {means} aggregations, after a warm-up; median (lowest to highest).",
        ],
        {"selection": figures, "aggregation": more},
    )
