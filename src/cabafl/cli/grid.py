"""Runs a grid of experiments with a progress bar and reports on it: `compare`, `ablate` and `sweep`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cabafl.cli.console import console, print_notice
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.comparison.grid import GridRun

Seeds = Annotated[int, typer.Option(help="Number of seeds, counting up from the experiment's seed.", min=1)]
Jobs = Annotated[str, typer.Option(help="Runs at the same time: a number, or auto for one per core.")]
Report = Callable[[Mapping[Path, str], Sequence[str]], None]  # of run folder -> label, with notes


def run_and_report(make: "Callable[[], list[GridRun]]", jobs: str, out: Path, report: Report, quiet: bool) -> None:
    """Executes what ``make`` returns, with the lock of ``out``, and reports on the finished runs in their order."""
    from cabafl.comparison.grid import locked, run_grid

    cores = parse_jobs(jobs)
    with locked(out):
        runs = make()
        done = sum(run.done for run in runs)
        if not quiet and done:
            console.print(f"{done} of {len(runs)} runs are already finished.")
        with GridProgress(runs, enabled=not quiet) as progress:
            try:
                run_grid(runs, cores, progress.update)
            except KeyboardInterrupt:
                console.print("Stopped. Run the same command again to continue.")
                raise typer.Exit(130) from None
        failed = [run for run in runs if run.failure is not None]
        for run in failed:
            print_notice("failed", f"{run.label}, seed {run.seed}: {run.failure}")
        places = {label: place for place, label in enumerate(dict.fromkeys(run.label for run in runs))}
        finished = {run.folder: run.label for run in sorted(runs, key=lambda run: places[run.label]) if run.done}
        if finished:
            report(finished, [f"failed: {run.label}, seed {run.seed}: {run.failure}" for run in failed])
    if failed:
        raise typer.Exit(1)


def parse_jobs(jobs: str) -> int:
    """The number of runs at the same time; raises `UserError` unless it is auto or a number of at least 1."""
    from cabafl.execution.starting import worker_count

    if jobs == "auto":
        return worker_count("auto")
    if not jobs.isdigit() or int(jobs) < 1:
        raise UserError(f"--jobs = {jobs!r}: accepted: auto or a number of at least 1")
    return int(jobs)


class GridProgress:
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

    def __enter__(self) -> "GridProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, runs: "Sequence[GridRun]") -> None:
        """Shows the state of all runs."""
        done = sum(run.done for run in runs)
        running = [run.label for run in runs if run.running()]
        text = f"{done}/{len(runs)} runs  now: {', '.join(running)}"
        self._bar.update(self._task, completed=sum(run.progress() for run in runs), description=text)
        for run in runs:
            if run.done and run.folder not in self._printed:
                self._printed.add(run.folder)
                if self._enabled and not self._live:
                    console.print(f"{done}/{len(runs)}  {run.label}, seed {run.seed}", soft_wrap=True)
