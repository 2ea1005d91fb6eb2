"""The files of a search: table, figures, and the best settings as an experiment file."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from statistics import fmean

from cabafl.checked import make_method
from cabafl.comparison.sweep import short_names
from cabafl.comparison.tuning.halving import REDUCTION, Trial, ranked
from cabafl.comparison.tuning.metric import counted, result
from cabafl.comparison.tuning.sampler import importances
from cabafl.comparison.tuning.search import SearchPlan
from cabafl.reporting.formats import markdown
from cabafl.reporting.report import write_files
from cabafl.reporting.tuning import TrialRow, TunedKey, TuningSummary, trial_table, trials_csv
from cabafl.reporting.tuning_figures import tuning_figures
from cabafl.toml import experiment_toml

BEST = "best.toml"
STATES = {"running": "interrupted", "waiting": "not promoted", "done": "finished", "failed": "failed"}


def summarised(plan: SearchPlan, trials: Sequence[Trial], out: Path) -> TuningSummary:
    """Reads the runs of all trials."""
    order = ranked(trials, plan.metric.loss)
    rest = [trial for trial in trials if trial not in order]
    names = short_names([dimension.key for dimension in plan.space.dimensions])
    keys = [TunedKey(each.key, names[each.key], each.log, each.choices) for each in plan.space.dimensions]
    shares = [str(Fraction(1, REDUCTION ** (plan.rungs - 1 - rung))) for rung in range(plan.rungs)]
    return TuningSummary(
        keys,
        [_row(plan, trial, out) for trial in [*order, *rest]],
        shares,
        [plan.seconds_at(rung) for rung in range(plan.rungs)],
        plan.metric.name,
        plan.metric.cost,
        plan.metric.target,
        importances(plan.space, trials, plan.metric),
        plan.metric.info,
    )


def _row(plan: SearchPlan, trial: Trial, out: Path) -> TrialRow:
    state = STATES[trial.phase]
    if not trial.scores:
        return TrialRow(trial.number, trial.values, state, trial.processor)
    runs, last = plan.runs(trial, out), len(trial.scores) - 1
    results = []
    for rung in range(len(trial.scores)):
        rows = [counted(plan.rows(run, rung)) for run in runs]
        whole = rung == last and trial.phase == "done" and all(run.done for run in runs)
        results.append(fmean(result(each, whole) for each in rows))
    cost = trial.scores[-1] if plan.metric.reached(trial.scores[-1]) else None
    return TrialRow(trial.number, trial.values, state, trial.processor, results, cost, rows[0])


def write_results(plan: SearchPlan, tuning: TuningSummary, trials: Sequence[Trial], out: Path) -> None:
    """Writes table.csv, table.md, figures and, if a trial has reached a rung, best.toml."""
    failures = [f"- trial {trial.number} failed: {trial.failure}" for trial in trials if trial.failure]
    table = markdown([trial_table(tuning)]) + ("\n" + "\n".join(failures) + "\n" if failures else "")
    contents = {"table.csv": trials_csv(tuning).encode(), "table.md": table.encode()}
    if tuning.best is not None:
        for figure in tuning_figures(tuning):
            contents |= {f"figures/{figure.name}.png": figure.png, f"figures/{figure.name}.svg": figure.svg}
        contents[BEST] = best_toml(plan, tuning, tuning.best).encode()
    write_files(out, contents)


def best_toml(plan: SearchPlan, tuning: TuningSummary, best: TrialRow) -> str:
    """The experiment file of the best trial, with a comment that says how good it is."""
    experiment = plan.space.experiment(best.values)
    value, info = tuning.value(best), tuning.info
    found = info.text(best.result or 0)
    said = f"{found} % {info.title}" if info.percent else f"{info.title} {found}"
    said += "" if tuning.cost is None else f", {tuning.label}: {'not reached' if value is None else f'{value:,.1f}'}"
    ran = tuning.rungs[best.reached - 1]
    share = "" if ran == "1" or best.state == "finished" else f" after {ran} of the run"
    trial = f"trial {best.number}, the best of {len(tuning.rows)}"
    head = f"# `cabafl tune --metric {tuning.metric}`: {trial}: {said}{share}\n"
    return head + experiment_toml(experiment, make_method(experiment).parameters)
