"""What `cabafl tune` reports: a table of the trials, and figures of the search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cabafl.recording.events import Evaluated
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
    """One trial. ``accuracies`` (0 to 1) has one entry per rung that it has reached; ``cost`` is that of a metric such
    as ``time_to_45``, None if the target was not reached."""

    number: int
    values: Mapping[str, Any]
    state: str
    processor: float
    accuracies: Sequence[float] = ()
    cost: float | None = None
    curve: Sequence[Evaluated] = ()

    @property
    def reached(self) -> int:
        """The number of rungs that it has reached."""
        return len(self.accuracies)

    @property
    def accuracy(self) -> float | None:
        """The accuracy at the last rung; None before the first."""
        return self.accuracies[-1] if self.accuracies else None


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
            return "accuracy of the best window [%]"
        return f"{COST_NAMES[self.cost]} to {self.target:g} % [{COST_UNITS[self.cost]}]"

    def value(self, row: TrialRow) -> float | None:
        """The metric of a trial in the unit of the label; None if it has none."""
        return next(reversed(self.values(row).values()), None)

    def values(self, row: TrialRow) -> dict[int, float]:
        """Number of rungs reached -> the metric there, where it has one."""
        if self.cost is None:
            return {place: 100 * accuracy for place, accuracy in enumerate(row.accuracies, 1)}
        return {} if row.cost is None else {row.reached: SCALE[self.cost] * row.cost}


def trial_table(tuning: TuningSummary, most: int | None = None) -> Table:
    """The trials, the best first; at most ``most`` of them."""
    headings = ["trial", *(key.name for key in tuning.keys), "ran", "accuracy [%]"]
    headings += [] if tuning.cost is None else [tuning.label]
    headings += ["processor [s]", "state"]
    rows = [_cells(tuning, row) for row in tuning.rows[:most]]
    title = "Trials" if most is None or len(tuning.rows) <= most else f"The best {most} of {len(tuning.rows)} trials"
    return Table(title, headings, rows)


def _cells(tuning: TuningSummary, row: TrialRow) -> list[Cell]:
    best = row is tuning.best
    texts = [str(row.number), *(value_text(row.values[key.key]) for key in tuning.keys)]
    texts.append(tuning.rungs[row.reached - 1] if row.reached else NOT_AVAILABLE)
    accuracy = NOT_AVAILABLE if row.accuracy is None else f"{100 * row.accuracy:.2f}"
    cells = [*map(Cell, texts), Cell(accuracy, best and tuning.cost is None)]
    if tuning.cost is not None:
        value = tuning.value(row)
        cells.append(Cell(NOT_REACHED if value is None else f"{value:,.1f}", best and value is not None))
    return [*cells, Cell(f"{row.processor:,.1f}"), Cell(row.state)]


def trials_csv(tuning: TuningSummary) -> str:
    """The same as raw numbers; an empty field means not available."""
    cost = [] if tuning.cost is None else [tuning.metric]
    keys = [key.key for key in tuning.keys]
    lines = [["trial", *keys, "rungs", "accuracy", *cost, "processor_seconds", "state"]]
    for row in tuning.rows:
        values = [value_text(row.values[key.key]) for key in tuning.keys]
        costs = [] if tuning.cost is None else [raw(row.cost)]
        lines.append(
            [str(row.number), *values, str(row.reached), raw(row.accuracy), *costs, raw(row.processor), row.state]
        )
    return csv_text(lines)
