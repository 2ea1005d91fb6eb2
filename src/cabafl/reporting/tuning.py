"""What `cabafl tune` reports: a table of the trials, and figures of the search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cabafl.recording.events import Evaluated
from cabafl.recording.scale import ACCURACY, MetricInfo
from cabafl.reporting.formats import csv_text, raw
from cabafl.reporting.series import SCALE
from cabafl.reporting.sweep import value_text
from cabafl.reporting.table import NOT_AVAILABLE, NOT_REACHED, Cell, Table

COST_UNITS = {"time": "s", "joules": "kJ", "transfers": "models"}
COST_NAMES = {"time": "virtual time", "joules": "energy", "transfers": "transfers"}


class TunedKey(NamedTuple):
    """A key that was searched; ``name`` is short, ``choices`` are empty for a range."""

    key: str
    name: str
    log: bool
    choices: tuple[str, ...]


@dataclass(frozen=True)
class TrialRow:
    """One trial. ``results`` (values of the task's metric) has one entry per rung that it has reached; ``cost`` is that
    of a metric such as ``time_to_45``, None if the target was not reached."""

    number: int
    values: Mapping[str, Any]
    state: str
    processor: float
    results: Sequence[float] = ()
    cost: float | None = None
    curve: Sequence[Evaluated] = ()

    @property
    def reached(self) -> int:
        """The number of rungs that it has reached."""
        return len(self.results)

    @property
    def result(self) -> float | None:
        """The metric of the task at the last rung; None before the first."""
        return self.results[-1] if self.results else None


@dataclass(frozen=True)
class TuningSummary:
    """All trials, the best first. ``cost`` and ``target`` are those of a metric such as ``time_to_45``."""

    keys: Sequence[TunedKey]
    rows: Sequence[TrialRow]
    rungs: Sequence[str]
    rung_seconds: Sequence[float]
    metric: str
    cost: str | None = None
    target: float = 0.0
    importances: Mapping[str, float] = field(default_factory=dict)
    info: MetricInfo = ACCURACY

    @property
    def best(self) -> TrialRow | None:
        """The best trial; None if none has reached a rung."""
        return next((row for row in self.rows if row.reached), None)

    @property
    def untested(self) -> int:
        """How many trials had published no model at the first rung, so that it says nothing about them."""
        end = self.rung_seconds[0]
        return sum(row.reached > 0 and all(e.version == 0 for e in row.curve if e.time <= end) for row in self.rows)

    @property
    def label(self) -> str:
        """The metric for readers, with its unit."""
        if self.cost is None:
            return f"{self.info.title} of the best window{' [%]' * self.info.percent}"
        return f"{COST_NAMES[self.cost]} to {self.target:g}{self.info.unit} [{COST_UNITS[self.cost]}]"

    def value(self, row: TrialRow) -> float | None:
        """The metric of a trial in the unit of the label; None if it has none."""
        return next(reversed(self.values(row).values()), None)

    def values(self, row: TrialRow) -> dict[int, float]:
        """Number of rungs reached -> the metric there, where it has one."""
        if self.cost is None:
            return {place: self.info.factor * result for place, result in enumerate(row.results, 1)}
        return {} if row.cost is None else {row.reached: SCALE[self.cost] * row.cost}


def trial_table(tuning: TuningSummary, most: int | None = None) -> Table:
    """The trials, the best first; at most ``most`` of them."""
    headings = ["trial", *(key.name for key in tuning.keys), "ran", tuning.info.label]
    headings += [] if tuning.cost is None else [tuning.label]
    headings += ["processor [s]", "state"]
    rows = [_cells(tuning, row) for row in tuning.rows[:most]]
    title = "Trials" if most is None or len(tuning.rows) <= most else f"The best {most} of {len(tuning.rows)} trials"
    return Table(title, headings, rows)


def _cells(tuning: TuningSummary, row: TrialRow) -> list[Cell]:
    best = row is tuning.best
    texts = [str(row.number), *(value_text(row.values[key.key]) for key in tuning.keys)]
    texts.append(tuning.rungs[row.reached - 1] if row.reached else NOT_AVAILABLE)
    result = NOT_AVAILABLE if row.result is None else tuning.info.text(row.result)
    cells = [*map(Cell, texts), Cell(result, best and tuning.cost is None)]
    if tuning.cost is not None:
        value = tuning.value(row)
        cells.append(Cell(NOT_REACHED if value is None else f"{value:,.1f}", best and value is not None))
    return [*cells, Cell(f"{row.processor:,.1f}"), Cell(row.state)]


def trials_csv(tuning: TuningSummary) -> str:
    """The same as raw numbers; an empty field means not available."""
    cost = [] if tuning.cost is None else [tuning.metric]
    keys = [key.key for key in tuning.keys]
    lines = [["trial", *keys, "rungs", tuning.info.name, *cost, "processor_seconds", "state"]]
    for row in tuning.rows:
        values = [value_text(row.values[key.key]) for key in tuning.keys]
        costs = [] if tuning.cost is None else [raw(row.cost)]
        lines.append(
            [str(row.number), *values, str(row.reached), raw(row.result), *costs, raw(row.processor), row.state]
        )
    return csv_text(lines)
