"""`cabafl compare` and `cabafl ablate`"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cabafl.cli.arguments import ExperimentFile, Quiet, Settings, Targets
from cabafl.cli.console import console, print_notice
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.comparison.grid import GridRun
    from cabafl.config import Experiment

MethodSettings = Annotated[
    list[str] | None,
    typer.Argument(
        help="Settings for all methods (section.key=value) or for one (fedasync.alpha=0.5).",
        metavar="[KEY=VALUE]...",
    ),
]
MethodNames = Annotated[str, typer.Option(help="Method names separated by commas, or paper, or all.")]
Seeds = Annotated[int, typer.Option(help="Number of seeds, counting up from the experiment's seed.", min=1)]
Jobs = Annotated[str, typer.Option(help="Runs at the same time: a number, or auto for one per core.")]


def compare(
    file: ExperimentFile = None,
    settings: MethodSettings = None,
    methods: MethodNames = "paper",
    seeds: Seeds = 1,
    jobs: Jobs = "auto",
    targets: Targets = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and report; an interrupted comparison continues.")] = Path(
        "comparison"
    ),
    quiet: Quiet = False,
) -> None:
    """Run several methods on the same experiment and report on them. Finished runs are not repeated."""
    base, variants = read_comparison(file, settings, methods)
    _run_and_report(base, variants, seeds, jobs, targets, out, quiet)


def read_comparison(
    file: Path | None, settings: list[str] | None, methods: str
) -> tuple["Experiment", dict[str, dict[str, Any]]]:
    """The experiment that all methods share, and the keys of each method."""
    from cabafl.cli.run import read_experiment
    from cabafl.comparison.variants import method_variants
    from cabafl.config import Experiment

    words = [*([str(file)] if file is not None else []), *(settings or [])]
    sections = {*Experiment.model_fields}
    overrides = [word for word in words if "=" in word and word.split("=")[0].split(".")[0] not in sections]
    base = read_experiment(None, [word for word in words if word not in overrides])
    return base, method_variants(methods, base, overrides)


def ablate(
    file: ExperimentFile = None,
    settings: Settings = None,
    seeds: Seeds = 1,
    jobs: Jobs = "auto",
    targets: Targets = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and report; an interrupted study continues.")] = Path(
        "ablation"
    ),
    quiet: Quiet = False,
) -> None:
    """Compare CaBaFL with its ablation variants conf1 to conf5 and hard-labels."""
    from cabafl.cli.run import read_experiment
    from cabafl.comparison.variants import ablation_variants

    base = read_experiment(file, settings)
    _run_and_report(base, ablation_variants(base), seeds, jobs, targets, out, quiet)


def _run_and_report(
    base: "Experiment",
    variants: Mapping[str, Mapping[str, Any]],
    seeds: int,
    jobs: str,
    targets: str | None,
    out: Path,
    quiet: bool,
) -> None:
    from cabafl.cli.report import parse_targets, write_report
    from cabafl.comparison.grid import locked, make_grid, run_grid

    percentages, cores = parse_targets(targets), _parse_jobs(jobs)
    with locked(out):
        runs = make_grid(base, variants, range(base.seed, base.seed + seeds), out)
        done = sum(run.done for run in runs)
        if not quiet and done:
            console.print(f"{done} of {len(runs)} runs are already finished.")
        with _GridProgress(runs, enabled=not quiet) as progress:
            try:
                run_grid(runs, cores, progress.update)
            except KeyboardInterrupt:
                console.print("Stopped. Run the same command again to continue.")
                raise typer.Exit(130) from None
        failed = [run for run in runs if run.failure is not None]
        for run in failed:
            print_notice("failed", f"{run.label}, seed {run.seed}: {run.failure}")
        finished = {run.folder: run.label for run in runs if run.done}
        if finished:
            notes = [f"failed: {run.label}, seed {run.seed}: {run.failure}" for run in failed]
            write_report(finished, out, percentages, quiet, notes)
    if failed:
        raise typer.Exit(1)


def _parse_jobs(jobs: str) -> int:
    from cabafl.execution.choice import worker_count

    if jobs == "auto":
        return worker_count("auto")
    if not jobs.isdigit() or int(jobs) < 1:
        raise UserError(f"--jobs = {jobs!r}: accepted: auto or a number of at least 1")
    return int(jobs)


class _GridProgress:
    """Progress of the whole grid: a live bar on a terminal, else a line per finished run."""

    def __init__(self, runs: "Sequence[GridRun]", enabled: bool) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._live = enabled and console.is_terminal
        self._enabled = enabled
        self._bar = Progress(*columns, console=console, disable=not self._live)
        self._task = self._bar.add_task("", total=float(len(runs)))
        self._printed: set[Path] = {run.folder for run in runs if run.done}

    def __enter__(self) -> "_GridProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, runs: "Sequence[GridRun]") -> None:
        """Shows the state of all runs."""
        done = sum(run.done for run in runs)
        running = [run.label for run in runs if run.process is not None and run.process.poll() is None]
        text = f"{done}/{len(runs)} runs  now: {', '.join(running)}"
        self._bar.update(self._task, completed=sum(run.progress() for run in runs), description=text)
        for run in runs:
            if run.done and run.folder not in self._printed:
                self._printed.add(run.folder)
                if self._enabled and not self._live:
                    console.print(f"{done}/{len(runs)}  {run.label}, seed {run.seed}", soft_wrap=True)
