"""Reads finished run folders and groups them by label for a report."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from cabafl import methods
from cabafl.config import EXECUTION_KEYS, Experiment, load_experiment
from cabafl.errors import UserError
from cabafl.recording.events import Evaluated
from cabafl.recording.folder import EVENTS, EXPERIMENT, SUMMARY, read_metrics
from cabafl.recording.metrics import averaged_rows, metric_figures
from cabafl.recording.scale import MetricInfo
from cabafl.recording.summary_file import decoded
from cabafl.recording.version_0_1 import translate_summary
from cabafl.reporting.trace import Counts, count_events
from cabafl.reporting.unfinished import MARK, read_unfinished
from cabafl.toml import flatten

REQUIRED_KEYS = (  # of summary.json, besides final_accuracy or that of another metric
    "fairness",
    "mean_staleness",
    "versions",
    "losses",
    "wall_seconds",
)
# Settings that change no result beyond rounding: where the data are, and where and how the work is done.
NEUTRAL_KEYS = ("data.root", "run.device", *(f"run.{key}" for key in EXECUTION_KEYS))


@dataclass(frozen=True)
class Run:
    """One finished run."""

    label: str
    """Name of its method or variant in the report."""

    folder: Path
    """The run folder."""

    experiment: Experiment
    """Every setting of the run."""

    metrics: list[Evaluated]
    """One row per evaluation, with the columns of ``metrics.csv``."""

    summary: dict[str, Any]
    """The content of ``summary.json``, with the names of this version and its figures of the metric."""

    @property
    def seed(self) -> int:
        """The seed of the experiment."""
        return self.experiment.seed

    @property
    def metric(self) -> MetricInfo:
        """The metric that it is judged by."""
        return self.metrics[0].metric

    @property
    def clock(self) -> str:
        """The clock of its times: virtual, or wall for a run on real devices."""
        return str(self.summary.get("clock", "virtual"))

    @property
    def ended_by(self) -> str | None:
        """What ended it before its time, if anything did."""
        by_operator = "cabafl deploy stop" if "stopped" in self.summary else None
        return self.summary.get("ended_by", by_operator)

    @property
    def events(self) -> Path:
        """Path of the event log, which may be too large to load at once."""
        return self.folder / EVENTS

    @cached_property
    def counts(self) -> Counts:
        """Totals of the event log, which is read on first use."""
        return count_events(self.events)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """``section.key`` -> value of all settings that affect results, without the seed."""
        flat = flatten(self.experiment.model_dump())
        ignored = {"seed", *NEUTRAL_KEYS}
        if self.experiment.data.dataset == "npz":  # data.root is the data set itself
            ignored.remove("data.root")
        return {key: value for key, value in flat.items() if key not in ignored}


Judged = Literal["raw", "averaged"]
"""Which models the figures of a report are of: those that the method publishes, or their average."""


def judged(runs: Sequence[Run], by: Judged | None = None) -> tuple[list[Run], Judged]:
    """The runs with the figures to compare them by, and which these are: the same for all runs.

    With averaged models, ``summary["raw"]`` has the figures of the published ones. None: averaged if all runs have
    averaged models, else raw. Raises `UserError` if averaged models are asked for and a run has none.
    """
    without = [run for run in runs if run.metrics[0].averaged_value is None]
    if by == "averaged" and without:
        raise UserError(f"{without[0].folder}: has no averaged model (run.average = none); accepted: --by raw")
    if by == "raw" or without:
        return list(runs), "raw"
    return [_averaged(run) for run in runs], "averaged"


def _averaged(run: Run) -> Run:
    rows = averaged_rows(run.metrics)
    final = {f"final_{run.metric.name}": rows[-1].value}
    figures = {**metric_figures(rows), **final, "raw": metric_figures(run.metrics)}
    return replace(run, metrics=rows, summary=run.summary | figures)


def metric_of(runs: Sequence[Run]) -> MetricInfo:
    """The metric of all runs; raises `UserError` if they have different ones."""
    metrics = list(dict.fromkeys(run.metric for run in runs))
    if len(metrics) > 1:
        names = ", ".join(metric.name for metric in metrics)
        raise UserError(f"runs of different metrics ({names}) cannot be compared; accepted: runs of one metric")
    return metrics[0]


def clock_of(runs: Iterable[Run]) -> str:
    """The name of the time axis: "virtual time", "wall time", or "time" if both occur."""
    clocks = {run.clock for run in runs}
    return f"{clocks.pop()} time" if len(clocks) == 1 else "time"


def load_runs(
    folders: str | Path | Sequence[str | Path],
    labels: Mapping[Path, str] | Mapping[str, str] | None = None,
    warn: Callable[[str], None] | None = None,
    unfinished: bool = False,
) -> list[Run]:
    """Loads finished runs. Duplicates are left out, and so are unfinished runs, unless they are asked for.

    Args:
        folders: One folder or several: run folders, or folders that contain some at any depth.
        labels: Run folder -> label. None: a run is labelled with its method, and with the settings that differ if runs
            of one method differ in more than the seed.
        warn: Called with one line about each run that is left out.
        unfinished: Whether runs that are interrupted or still going on count, with what they have recorded so far.
            Their labels say so.

    Raises:
        UserError: If no finished run is found, or a run folder is damaged.
    """
    warn = warn or (lambda _: None)
    paths = [Path(folder) for folder in ([folders] if isinstance(folders, str | Path) else folders)]
    label_of = {Path(folder): label for folder, label in (labels or {}).items()}
    finished = []
    for folder in _find(paths):
        if (folder / SUMMARY).exists():
            finished.append(load_run(folder, label_of.get(folder, "")))
        elif unfinished and (so_far := read_unfinished(folder)) is not None:
            experiment, rows, summary = so_far
            label = label_of.get(folder, experiment.method.name.rpartition(":")[2])
            finished.append(Run(label, folder, experiment, rows, summary))
        else:
            warn(f"{folder}: not finished (it has no {SUMMARY}); left out")
    if not finished:
        accepted = "folders of `cabafl run`" + ("" if unfinished else ", unfinished ones with --unfinished")
        raise UserError(f"{', '.join(map(str, paths))}: no finished run found; accepted: {accepted}")
    named = finished if labels else _labelled(finished)
    return _deduplicated([_marked(run, keep=bool(labels)) for run in named], warn)


def _marked(run: Run, keep: bool) -> Run:
    """The seed and time of an unfinished run, or of one that was finished by hand, are part of its label: no other run
    ends there. ``keep``: the labels of finished runs are given."""
    mark = MARK if MARK in run.summary else "ended by hand" if run.ended_by == "finish" and not keep else None
    if mark is None:
        return run
    return replace(run, label=f"{run.label} (seed {run.seed}, {mark}: {run.metrics[-1].time:,.0f} s)")


def by_label(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Groups runs by label, each group sorted by seed; runs in a group differ in the seed only."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return {label: sorted(group, key=lambda run: run.seed) for label, group in groups.items()}


def _find(folders: Sequence[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: not a folder; accepted: run folders, or folders that contain some")
        for file in sorted(folder.rglob(EXPERIMENT), key=lambda file: natural(str(file))):
            found.setdefault(file.parent.resolve(), file.parent)
    return list(found.values())


def load_run(folder: Path, label: str, needs_events: bool = True) -> Run:
    """Reads one finished run. Raises `UserError` if the folder is damaged, or lacks the event log if it is needed."""
    try:
        summary = decoded((folder / SUMMARY).read_bytes())
        rows = read_metrics(folder)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: not a readable run folder: {error}") from None
    summary = translate_summary(summary) if isinstance(summary, dict) else {}
    experiment = load_experiment(folder / EXPERIMENT)
    if not rows:
        raise UserError(f"{folder}: not a readable run folder: it has no evaluations")
    missing = [key for key in (f"final_{rows[0].metric.name}", *REQUIRED_KEYS) if key not in summary]
    if missing:
        raise UserError(f"{folder / SUMMARY}: has no {missing[0]!r}; accepted: what `cabafl run` writes")
    if needs_events and not (folder / EVENTS).is_file():
        raise UserError(f"{folder}: not a readable run folder: {EVENTS} is missing")
    summary |= metric_figures(rows)  # an older version may have computed them otherwise
    return Run(label or experiment.method.name.rpartition(":")[2], folder, experiment, rows, summary)


def _labelled(runs: Sequence[Run]) -> list[Run]:
    """Gives runs of one method with different settings different labels; sorts by the order of the method list.

    Folders that a comparison named ``<label>-seed<seed>`` give the label if only keys of ``[method]`` differ.
    """
    order = {name: place for place, name in enumerate(methods.NAMES)}
    labelled: list[Run] = []
    for group in sorted(by_label(runs).values(), key=lambda group: order.get(group[0].label, len(order))):
        differing = sorted({key for run in group for key in run.settings if _differs(group, key)})
        folders = [re.fullmatch(rf"(.+)-seed{run.seed}", run.folder.name) for run in group]
        if differing and all(folders) and all(key.startswith("method.") for key in differing):
            named = [replace(run, label=match[1]) for run, match in zip(group, folders, strict=True) if match]
        else:
            named = [replace(run, label=_label(run, differing)) for run in group]
        labelled += sorted(named, key=lambda run: natural(run.label))
    return labelled


def natural(text: str) -> list[tuple[float, str]]:
    """A key to sort by: numbers in a text count as numbers, so that 5 comes before 10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(float(part), "") if place % 2 else (0.0, part) for place, part in enumerate(parts)]


def _differs(group: Sequence[Run], key: str) -> bool:
    return any(run.settings.get(key) != group[0].settings.get(key) for run in group)


def _label(run: Run, differing: Sequence[str]) -> str:
    texts = [f"{key.rpartition('.')[2]} = {run.settings.get(key)}" for key in differing]
    return f"{run.label} ({', '.join(texts)})" if texts else run.label


def _deduplicated(runs: Sequence[Run], warn: Callable[[str], None]) -> list[Run]:
    """Keeps the first run of each label and seed: the same experiment gives the same run."""
    kept: dict[tuple[str, int], Run] = {}
    for run in runs:
        first = kept.setdefault((run.label, run.seed), run)
        if first is not run:
            warn(f"{run.folder}: the same label and seed as {first.folder}; left out")
    return list(kept.values())
