"""The number in each cell: measured over the seeds that are there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from cabafl.paper.definitions import ArtefactLayout
from cabafl.reporting.measures import INFINITE, cost_to
from cabafl.reporting.runs import Run
from cabafl.reproduction.pool import RunPool

Place = tuple[str, str]  # (id of the row, id of the column)


@dataclass(frozen=True)
class Value:
    """A measured number; ``mean`` is None if it could not be reached, e.g. the transfers to a target accuracy."""

    mean: float | None
    deviation: float | None  # in the best window
    spread: float | None  # standard deviation over seeds
    seeds: int


@dataclass(frozen=True)
class MeasuredArtefact:
    """An artefact at a scale with its runs and values; a cell without finished runs is in neither."""

    table: ArtefactLayout
    runs: Mapping[Place, Sequence[Run]]
    values: Mapping[Place, Value]

    @property
    def gaps(self) -> int:
        """Number of cells without a finished run."""
        return len(self.table.cells) - len(self.runs)


def measure_cells(table: ArtefactLayout, pool: RunPool) -> MeasuredArtefact:
    """Reads the finished runs of every cell."""
    runs: dict[Place, list[Run]] = {}
    values: dict[Place, Value] = {}
    for cell in table.cells:
        row = table.rows[cell.row]
        place = (row.id, table.columns[cell.column].id)
        found = pool.runs(cell.experiment)
        if table.artefact.kind == "selections":
            found = [run for run in found if run.events.exists()]
        if found:
            runs[place] = found
            values[place] = _value(table.artefact.kind, found, row.scaled(table.scale).target or row.target)
    return MeasuredArtefact(table, runs, values)


def _value(kind: str, runs: Sequence[Run], target: float | None) -> Value:
    if kind == "transfers":
        assert target is not None
        middle = median(cost_to(run.metrics, "transfers", target) for run in runs)
        return Value(None if middle == INFINITE else middle, None, None, len(runs))
    if kind == "stability":
        return _over_seeds([_percent(run.summary["stability"]) for run in runs], [])
    if kind == "selections":
        return _over_seeds([run.summary["fairness"] for run in runs], [])
    windows = [_percent(run.summary["best_window_deviation"]) for run in runs]
    return _over_seeds([_percent(run.summary["best_window_mean"]) for run in runs], windows)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _over_seeds(values: Sequence[float | None], windows: Sequence[float | None]) -> Value:
    known = [value for value in values if value is not None]
    inside = [value for value in windows if value is not None]
    return Value(
        fmean(known) if known else None,
        fmean(inside) if inside else None,
        stdev(known) if len(known) > 1 else None,
        len(values),
    )


def better(kind: str) -> Callable[[Sequence[float]], float]:
    """``max`` or ``min``: which of several values of this kind is the best."""
    return min if kind in ("transfers", "stability", "selections") else max
