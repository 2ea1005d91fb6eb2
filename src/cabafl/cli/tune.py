"""`cabafl tune`"""

import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cabafl.cli.arguments import ExperimentFile, Quiet
from cabafl.cli.console import console, print_notice
from cabafl.cli.grid import Jobs, Seeds, parse_jobs
from cabafl.errors import RunStopped, UserError

if TYPE_CHECKING:
    from cabafl.comparison.tuning.halving import Trial
    from cabafl.comparison.tuning.search import Search, SearchPlan
    from cabafl.reporting.tuning import TuningSummary

SHOWN = 10  # trials in the terminal
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


Searched = Annotated[
    list[str] | None,
    typer.Argument(
        help="Keys to search, as KEY=low..high (numbers; with :log or :linear for the scale) or KEY=a,b,c (choices); "
        "KEY=value holds for all runs.",
        metavar="KEY=LOW..HIGH...",
    ),
]
MetricName = Annotated[
    str | None,
    typer.Option(
        help="What to optimise: the metric of the task (accuracy; the default), or time_to_45, energy_to_45, "
        "transfers_to_45 (any percentage)."
    ),
]
Budget = Annotated[str | None, typer.Option(help="Wall time of the search, e.g. 90s, 20m, 4h; earlier calls count.")]
TrialCount = Annotated[int | None, typer.Option(help="Number of trials instead, or as well.", min=1)]
Rungs = Annotated[int, typer.Option(help="Rungs, each three times as long as the one below.", min=1, max=6)]


def tune(
    file: ExperimentFile = None,
    settings: Searched = None,
    metric: MetricName = None,
    budget: Budget = None,
    trials: TrialCount = None,
    rungs: Rungs = 3,
    seeds: Seeds = 1,
    jobs: Jobs = "auto",
    out: Annotated[Path, typer.Option(help="Folder for runs and results; an interrupted search continues.")] = Path(
        "tuning"
    ),
    quiet: Quiet = False,
) -> None:
    """Search for the best values of some keys: bad trials stop early, good ones go on from their checkpoints."""
    _require_optuna()
    from cabafl.assembly import metric_of
    from cabafl.cli.run import file_and_settings
    from cabafl.comparison.grid import locked
    from cabafl.comparison.tuning.metric import parse_metric
    from cabafl.comparison.tuning.search import SearchPlan
    from cabafl.comparison.tuning.space import parse_space

    if budget is None and trials is None:
        raise UserError("--budget, --trials: neither is given; accepted: one or both, e.g. --budget 4h")
    seconds = None if budget is None else parse_duration(budget)
    cores, space = parse_jobs(jobs), parse_space(*file_and_settings(file, settings))
    chosen = parse_metric(metric, metric_of(space.experiment(space.first)))
    plan = SearchPlan(space, chosen, rungs, seeds, trials, seconds)
    with locked(out):
        search = _search(plan, cores, out, quiet)
        _report(plan, search, out, quiet)


def _search(plan: "SearchPlan", cores: int, out: Path, quiet: bool) -> "Search":
    from cabafl.comparison.tuning.search import Search
    from cabafl.comparison.tuning.store import open_store

    with (
        closing(open_store(out, plan.about(), plan.metric.lower_is_better)) as store,
        SearchProgress(plan, enabled=not quiet) as progress,
    ):
        search = Search(plan, out, store, progress.update)
        if not quiet and search.trials:
            used_up = plan.budget is not None and search.seconds >= plan.budget
            what = f"The budget of {plan.budget:g} s is used up by" if used_up else "Continues"
            console.print(f"{what} a search of {len(search.trials)} trials, {search.seconds:,.0f} s.")
        try:
            search.run(cores)
        except KeyboardInterrupt:
            console.print("Stopped. Run the same command again to continue.")
            raise typer.Exit(130) from None
        return search


def parse_duration(text: str) -> float:
    """Seconds of ``90s``, ``20m``, ``4h`` or ``1d``; raises `UserError` for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if match is None or float(match[1]) <= 0:
        raise UserError(f"--budget = {text!r}: accepted: a time above 0 with its unit, e.g. 90s, 20m, 4h, 1d")
    return float(match[1]) * UNITS[match[2]]


def _require_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise UserError("cabafl tune needs Optuna; run `pip install 'cabafl[tune]'`") from None


def _report(plan: "SearchPlan", search: "Search", out: Path, quiet: bool) -> None:
    from cabafl.comparison.tuning.results import summarised, write_results
    from cabafl.reporting.formats import terminal
    from cabafl.reporting.tuning import trial_table

    tuning = summarised(plan, search.trials, out)
    write_results(plan, tuning, search.trials, out)
    for trial in search.trials:
        if trial.failure:
            print_notice("failed", f"trial {trial.number}: {trial.failure}")
    if search.broken is not None:
        raise RunStopped(f"tune: the first trials have all failed: {search.broken}")
    if quiet:
        return
    console.print(terminal(trial_table(tuning, SHOWN)))
    for line in closing_lines(tuning, search.trials, out):
        console.print(line, soft_wrap=True)


def closing_lines(tuning: "TuningSummary", trials: "list[Trial]", out: Path) -> list[str]:
    """What the terminal shows below the table."""
    from cabafl.comparison.tuning.halving import saved_seconds
    from cabafl.comparison.tuning.results import BEST

    spent, saved = sum(trial.processor for trial in trials), saved_seconds(trials)
    lines = []
    if tuning.best is None:
        lines.append("No trial has reached a rung; a longer --budget continues the search.")
    elif tuning.best.state != "finished":
        lines.append("No trial has run in full; a longer --budget continues the search.")
    if tuning.untested:
        lines.append(
            f"At the first rung, t = {tuning.rung_seconds[0]:.4g} s, {tuning.untested} trials had not published a "
            "model yet; fewer --rungs or a longer run.virtual_time would tell them apart."
        )
    if saved > 0:
        share = 100 * saved / (spent + saved)
        lines.append(
            f"Processor time: {spent:,.0f} s. Resuming promoted trials instead of starting them again saved "
            f"{saved:,.0f} s ({share:.0f} %)."
        )
    if tuning.best is not None:
        lines.append(f"Best settings: {out / BEST}; figures: {out / 'figures'}")
    return lines


class SearchProgress:
    """Progress of a search: a live bar on a terminal, else a line per rung that a trial reaches."""

    def __init__(self, plan: "SearchPlan", enabled: bool) -> None:
        self._plan, self._enabled = plan, enabled
        self._live = enabled and console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, disable=not self._live)
        self._task = self._bar.add_task("", total=1.0)
        self._known: dict[int, int] | None = None

    def __enter__(self) -> "SearchProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, search: "Search") -> None:
        """Shows the state of all trials."""
        reached = {trial.number: len(trial.scores) for trial in search.trials}
        done = sum(trial.phase == "done" for trial in search.trials)
        now = ", ".join(dict.fromkeys(run.label for run in search.running))
        text = f"{len(reached)} trials, {done} finished  now: {now}"
        self._bar.update(self._task, completed=self._share(search), description=text)
        if self._enabled and not self._live and self._known is not None:
            for trial in search.trials:
                if len(trial.scores) > self._known.get(trial.number, 0):
                    console.print(_line(self._plan, trial), soft_wrap=True)
        self._known = reached

    def _share(self, search: "Search") -> float:
        """Of the budget, or of the trials that have reached a rung, whichever is further."""
        shares = [0.0]
        if self._plan.budget is not None:
            shares.append(search.seconds / self._plan.budget)
        if self._plan.trials is not None:
            shares.append(sum(bool(trial.scores) for trial in search.trials) / self._plan.trials)
        return min(1.0, max(shares))


def _line(plan: "SearchPlan", trial: "Trial") -> str:
    from cabafl.reporting.sweep import value_text

    values = ", ".join(f"{key} = {value_text(value)}" for key, value in trial.values.items())
    score, metric = trial.scores[-1], plan.metric
    shown = (
        f"{metric.info.text(score)}{metric.info.unit}"
        if metric.cost is None
        else f"{score:,.1f}"
        if metric.reached(score)
        else "not reached"
    )
    return f"trial {trial.number}, rung {len(trial.scores)} of {plan.rungs}: {metric.name} {shown}  ({values})"
