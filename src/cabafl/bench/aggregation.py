"""Time of one aggregation: the weighted mean of K flat models."""

from cabafl.bench.report import BenchTable
from cabafl.bench.timing import Spread, seconds
from cabafl.methods.averaging import weighted_mean
from cabafl.rng import rng


def measure(entries: int, models: int, repetitions: int) -> Spread:
    """Seconds to average ``models`` models of ``entries`` numbers, after one warm-up."""
    draw = rng(1, "bench aggregation", entries, models)
    stored = [draw.random(entries, dtype="f4") for _ in range(models)]
    weights = draw.random(models).tolist()
    return Spread.of([seconds(lambda: weighted_mean(stored, weights)) for _ in range(repetitions + 1)][1:])


def table(sizes: list[tuple[int, int]], repetitions: int) -> tuple[BenchTable, list[dict[str, object]]]:
    """One row per (entries, models), with the rate at which model data are read."""
    rows, figures = [], []
    for entries, models in sizes:
        time = measure(entries, models, repetitions)
        speed = 4 * entries * models / time.median / 1e9
        milliseconds = Spread(*(1e3 * value for value in time.figures().values()))
        rows.append((f"{entries:,}", str(models), milliseconds.text(2), f"{speed:.2f}"))
        figures.append(
            {"d": entries, "K": models, "milliseconds": milliseconds.figures(), "gigabytes_per_second": speed}
        )
    headings = ("numbers per model", "K", "ms", "GB/s read")
    return BenchTable("One aggregation (weighted mean in float64)", headings, rows), figures
