"""`compare` and `sweep` from Python."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from cabafl.assembly import metric_of
from cabafl.checked import make_method
from cabafl.comparison.grid import GridRun, locked, make_grid, make_runs, run_grid
from cabafl.comparison.sweep import plan_sweep
from cabafl.comparison.variants import method_variants
from cabafl.config import Experiment
from cabafl.errors import UserError
from cabafl.execution.starting import worker_count
from cabafl.names import is_given
from cabafl.reporting.report import ReportPaths, build_report, check_targets
from cabafl.reporting.runs import Run, load_runs
from cabafl.reporting.sweep import Sweep
from cabafl.toml import experiment_toml, toml_value

if TYPE_CHECKING:
    import pandas as pd

Poll = Callable[[Sequence[GridRun]], None]


@dataclass(frozen=True)
class Comparison:
    """What `compare` and `sweep` return."""

    runs: list[Run]
    """The finished runs."""

    report: ReportPaths
    """The files of the report: tables, figures and a page."""

    failures: dict[str, str]
    """Label and seed of each run that failed -> the reason."""

    @property
    def summary(self) -> "pd.DataFrame":
        """One row per run: label, seed and the figures of its ``summary.json``."""
        import pandas as pd

        return pd.DataFrame([{"label": run.label, **run.summary} for run in self.runs])

    def _repr_html_(self) -> str:
        import html

        failed = "".join(f"<li>{html.escape(f'{who}: {why}')}</li>" for who, why in self.failures.items())
        figures = self.summary[["label", "seed", "best_window_mean", "best_window_deviation", "time"]]
        return f"{figures.to_html(index=False)}<p>Report: {html.escape(str(self.report.html))}</p><ul>{failed}</ul>"


def compare(
    experiment: Experiment,
    methods: str | Sequence[str] = "paper",
    seeds: int = 1,
    out: str | Path = "comparison",
    targets: Sequence[float] | None = None,
    jobs: int | None = None,
    poll: Poll | None = None,
) -> Comparison:
    """Runs several methods on the same experiment, each in a process of its own, and reports on them.

    Args:
        experiment: What all methods share. Its keys of ``[method]`` apply to the method named there.
        methods: Names, or ``paper`` or ``all``.
        seeds: Number of seeds, counting up from the experiment's.
        out: Folder for runs and report. Finished runs in it are not repeated, interrupted ones continue.
        targets: See `build_report`.
        jobs: Runs at the same time; None: one per core.
        poll: Called five times a second with all runs.

    Raises:
        UserError: If a method or setting is wrong, or ``out`` holds something else.
        KeyboardInterrupt: After Ctrl-C, with a checkpoint of every run; the same call continues.
    """
    _check_experiment(experiment)
    names = _names(methods)
    variants = method_variants(names, experiment, [])
    seeds_from = range(experiment.seed, experiment.seed + _at_least_one(seeds, "seeds"))
    folder = _folder(out)
    metric = metric_of(experiment)
    if targets is not None:
        check_targets(targets, metric)
    return _carry_out(lambda: make_grid(experiment, variants, seeds_from, folder), folder, targets, jobs, poll)


def sweep(
    experiment: Experiment,
    grid: Mapping[str, Sequence[Any]],
    methods: str | Sequence[str] | None = None,
    seeds: int = 1,
    out: str | Path = "sweep",
    jobs: int | None = None,
    poll: Poll | None = None,
) -> Comparison:
    """Runs every combination of the values of some keys, each in a process of its own, and reports on them.

    Args:
        experiment: The settings that are not varied.
        grid: ``section.key`` -> the values to try, e.g. ``{"method.k": [5, 10, 20]}``.
        methods: See `compare`; None: the experiment's method.
        seeds: See `compare`.
        out: See `compare`.
        jobs: See `compare`.
        poll: See `compare`.

    Raises:
        UserError: If a key or value is wrong, or ``out`` holds something else.
        KeyboardInterrupt: See `compare`.
    """
    _check_experiment(experiment)
    folder = _folder(out)
    names = None if methods is None else _names(methods)
    settings = [f"{key}={','.join(map(_value, values))}" for key, values in _checked_grid(grid).items()]
    with TemporaryDirectory() as scratch:
        base = Path(scratch) / "experiment.toml"
        base.write_text(experiment_toml(experiment, make_method(experiment).parameters), encoding="utf-8")
        plan = plan_sweep(base, settings, names, _at_least_one(seeds, "seeds"))
    for case in plan.cases:
        metric_of(case.experiment)

    def make() -> list[GridRun]:
        return make_runs(plan.cases, range(plan.seed, plan.seed + seeds), folder)

    return _carry_out(make, folder, None, jobs, poll, plan.sweep)


def _carry_out(
    make: Callable[[], list[GridRun]],
    out: Path,
    targets: Sequence[float] | None,
    jobs: int | None,
    poll: Poll | None,
    plan: Sweep | None = None,
) -> Comparison:
    cores = worker_count("auto") if jobs is None else _at_least_one(jobs, "jobs")
    with locked(out):
        runs = make()
        run_grid(runs, cores, poll or (lambda _: None))
        failures = {f"{run.label}, seed {run.seed}": run.failure for run in runs if run.failure is not None}
        labels = {run.folder: run.label for run in runs if run.done}
        if not labels:
            who, why = next(iter(failures.items()))
            raise UserError(f"{out}: no run could be finished; {who}: {why}")
        finished = load_runs(list(labels), labels)
        notes = [f"failed: {who}: {why}" for who, why in failures.items()]
        return Comparison(finished, build_report(finished, out, targets, notes=notes, sweep=plan), failures)


def _check_experiment(experiment: Experiment) -> None:
    if not isinstance(experiment, Experiment):
        raise UserError(f"experiment = {experiment!r:.80}: accepted: what load_experiment returns")
    if is_given(experiment.data.dataset):
        raise UserError("data: cannot be handed in to several runs; accepted: data.dataset, e.g. my_module:function")


def _names(methods: str | Sequence[str]) -> str:
    if isinstance(methods, str):
        return methods
    if not isinstance(methods, Sequence) or not methods or not all(isinstance(name, str) for name in methods):
        raise UserError(f"methods = {methods!r:.80}: accepted: names of methods, paper or all")
    return ",".join(methods)


def _checked_grid(grid: Mapping[str, Sequence[Any]]) -> Mapping[str, Sequence[Any]]:
    if not isinstance(grid, Mapping):
        raise UserError(f"grid = {grid!r:.80}: accepted: section.key -> a list of values")
    for key, values in grid.items():
        listed = isinstance(values, Sequence | np.ndarray) and not isinstance(values, str)
        if not isinstance(key, str) or not listed or not len(values):
            raise UserError(f"grid: {key!s:.80} = {values!r:.80}: accepted: a list of values, e.g. [5, 10]")
    return grid


def _folder(out: str | Path) -> Path:
    if not isinstance(out, str | Path):
        raise UserError(f"out = {out!r:.80}: accepted: the path of a folder")
    return Path(out)


def _value(value: Any) -> str:
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is None:
        return "none"
    if not isinstance(plain, bool | int | float | str | list | tuple | Mapping):
        raise UserError(f"grid: {value!r:.80}: accepted: numbers, strings, true or false, None, lists of them")
    return toml_value(plain)


def _at_least_one(count: int, name: str) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise UserError(f"{name} = {count!r:.80}: accepted: a whole number from 1")
    return count
