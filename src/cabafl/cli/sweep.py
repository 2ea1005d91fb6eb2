"""`cabafl sweep`"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cabafl.cli.arguments import ExperimentFile, Quiet, Targets
from cabafl.cli.grid import Jobs, Seeds, run_and_report
from cabafl.cli.watch import Watch, watching

if TYPE_CHECKING:
    from cabafl.comparison.grid import GridRun


def sweep(
    file: ExperimentFile = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="Keys with several values (method.k=5,10,20), which are swept, or with one, which holds for all runs.",
            metavar="KEY=V1,V2,...",
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Method names separated by commas, or paper, or all; default: the experiment's.")
    ] = None,
    seeds: Seeds = 1,
    jobs: Jobs = "auto",
    targets: Targets = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and report; an interrupted sweep continues.")] = Path(
        "sweep"
    ),
    watch: Watch = False,
    quiet: Quiet = False,
) -> None:
    """Run every combination of the values of some keys and report on them. Finished runs are not repeated."""
    from cabafl.assembly import metric_of
    from cabafl.cli.report import parse_targets, write_report
    from cabafl.cli.run import file_and_settings
    from cabafl.comparison.grid import make_runs
    from cabafl.comparison.sweep import plan_sweep

    plan = plan_sweep(*file_and_settings(file, settings), methods, seeds)
    metrics = [metric_of(case.experiment) for case in plan.cases]
    chosen = parse_targets(targets, metrics[0])

    def make() -> "list[GridRun]":
        return make_runs(plan.cases, range(plan.seed, plan.seed + seeds), out)

    def report(labels: Mapping[Path, str], notes: Sequence[str]) -> None:
        write_report(labels, out, chosen, quiet, notes, plan.sweep)

    with watching(watch, [out]):
        run_and_report(make, jobs, out, report, quiet)
