"""Finished run folders, read for a report."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cabafl import methods
from cabafl.config import EXECUTION_KEYS, Experiment, load_experiment
from cabafl.errors import UserError
from cabafl.recording.events import Evaluated
from cabafl.recording.folder import EVENTS, EXPERIMENT, SUMMARY, read_metrics
from cabafl.recording.version_0_1 import translate_summary
from cabafl.reporting.trace import Counts, count_events

NEEDED = (
    "best_window_mean",
    "best_window_deviation",
    "final_accuracy",
    "stability",
    "fairness",
    "mean_staleness",
    "versions",
    "losses",
    "wall_seconds",
)
# Where the data are and where and how the work was done changes no result beyond rounding.
INDIFFERENT = ("data.root", "run.device", *(f"run.{key}" for key in EXECUTION_KEYS))


@dataclass(frozen=True)
class Run:
    """One finished run; ``label`` is the name of its method or variant in the report."""

    label: str
    folder: Path
    experiment: Experiment
    metrics: list[Evaluated]
    summary: dict[str, Any]

    @property
    def seed(self) -> int:
        """Of the experiment."""
        return self.experiment.seed

    @property
    def clock(self) -> str:
        """Whose seconds its times are: virtual, or wall where real devices ran."""
        return str(self.summary.get("clock", "virtual"))

    @property
    def events(self) -> Path:
        """The event log, which may be long: it is streamed, never kept."""
        return self.folder / EVENTS

    @cached_property
    def counts(self) -> Counts:
        """What the event log adds up to; read at the first use."""
        return count_events(self.events)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """``section.key`` -> value of everything but the seed and what changes no result."""
        flat = flatten(self.experiment.model_dump())
        indifferent = {"seed", *INDIFFERENT}
        if self.experiment.data.dataset == "npz":  # the file is the data set
            indifferent.remove("data.root")
        return {key: value for key, value in flat.items() if key not in indifferent}


def clock_of(runs: Iterable[Run]) -> str:
    """What all times of a report are called: "virtual time", "wall time", or "time" where both occur."""
    clocks = {run.clock for run in runs}
    return f"{clocks.pop()} time" if len(clocks) == 1 else "time"


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables with dotted keys; counts and watts per tier stay one value."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, dict) and "tier" not in key:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def load_runs(
    folders: Sequence[Path], labels: Mapping[Path, str] | None = None, warn: Callable[[str], None] | None = None
) -> list[Run]:
    """The finished runs in these folders, at any depth; ``warn`` hears which were left out and why.

    Without ``labels`` (of the folders themselves) a run is called by its method, and by what sets it apart where runs
    of one method differ in more than the seed.
    """
    tell = warn or (lambda _: None)
    finished = []
    for folder in _find(folders):
        if (folder / SUMMARY).exists():
            finished.append(_load(folder, (labels or {}).get(folder, "")))
        else:
            tell(f"{folder}: not complete (it has no {SUMMARY}); left out")
    if not finished:
        raise UserError(f"{', '.join(map(str, folders))}: no finished run here; accepted: folders of `cabafl run`")
    named = finished if labels else _named(finished)
    return _without_doubles(named, tell)


def by_label(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ in nothing but the seed, together."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return {label: sorted(group, key=lambda run: run.seed) for label, group in groups.items()}


def _find(folders: Sequence[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: not a folder; accepted: run folders, or folders that hold some")
        for file in sorted(folder.rglob(EXPERIMENT)):
            found.setdefault(file.parent.resolve(), file.parent)
    return list(found.values())


def _load(folder: Path, label: str) -> Run:
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        rows = read_metrics(folder)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: not a readable run folder: {error}") from None
    summary = translate_summary(summary) if isinstance(summary, dict) else {}
    experiment = load_experiment(folder / EXPERIMENT)
    missing = [key for key in NEEDED if key not in summary]
    if missing:
        raise UserError(f"{folder / SUMMARY}: has no {missing[0]!r}; accepted: what `cabafl run` writes")
    if not rows:
        raise UserError(f"{folder}: not a readable run folder: no evaluation is recorded")
    if not (folder / EVENTS).is_file():
        raise UserError(f"{folder}: not a readable run folder: {EVENTS} is missing")
    return Run(label or experiment.method.name.rpartition(":")[2], folder, experiment, rows, summary)


def _named(runs: Sequence[Run]) -> list[Run]:
    """Labels of their own for runs of one method with different settings, in the order in which methods are listed."""
    order = {name: place for place, name in enumerate(methods.NAMES)}
    named: list[Run] = []
    for group in sorted(by_label(runs).values(), key=lambda group: order.get(group[0].label, len(order))):
        apart = sorted({key for run in group for key in run.settings if _differs(group, key)})
        folders = [re.fullmatch(rf"(.+)-seed{run.seed}", run.folder.name) for run in group]
        if apart and all(folders) and all(key.startswith("method.") for key in apart):
            named += [replace(run, label=match[1]) for run, match in zip(group, folders, strict=True) if match]
        else:
            named += [replace(run, label=_label(run, apart)) for run in group]
    return named


def _differs(group: Sequence[Run], key: str) -> bool:
    return any(run.settings.get(key) != group[0].settings.get(key) for run in group)


def _label(run: Run, apart: Sequence[str]) -> str:
    texts = [f"{key.rpartition('.')[2]} = {run.settings.get(key)}" for key in apart]
    return f"{run.label} ({', '.join(texts)})" if texts else run.label


def _without_doubles(runs: Sequence[Run], tell: Callable[[str], None]) -> list[Run]:
    """The same experiment gives the same run: one copy is enough."""
    kept: dict[tuple[str, int], Run] = {}
    for run in runs:
        first = kept.setdefault((run.label, run.seed), run)
        if first is not run:
            tell(f"{run.folder}: the same label and seed as {first.folder}; left out")
    return list(kept.values())
