"""`cabafl compare` and `cabafl ablate`"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cabafl.cli.console import console, tell
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.comparison.grid import GridRun
    from cabafl.config import Experiment

File = Annotated[Path | None, typer.Argument(help="An experiment file (TOML); without it, the defaults.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(help="section.key=value, or method.key=value as fedasync.alpha=0.5", metavar="[KEY=VALUE]..."),
]
Seeds = Annotated[int, typer.Option(help="How many seeds: the experiment's own and the following ones.", min=1)]
Jobs = Annotated[str, typer.Option(help="Runs at the same time: auto (one per core) or a number.")]
Targets = Annotated[str | None, typer.Option(help="Target accuracies in percent, e.g. 40,45.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]


def compare(
    file: File = None,
    settings: Settings = None,
    methods: Annotated[str, typer.Option(help="Names with commas, or paper, or all.")] = "paper",
    seeds: Seeds = 1,
    jobs: Jobs = "auto",
    targets: Targets = None,
    out: Annotated[Path, typer.Option(help="Folder of the comparison; an interrupted one continues.")] = Path(
        "comparison"
    ),
    quiet: Quiet = False,
) -> None:
    """Run methods side by side and show the result. Finished runs are not repeated."""
    from cabafl.cli.run import read
    from cabafl.comparison.variants import method_variants
    from cabafl.config import Experiment

    words = [*([str(file)] if file is not None else []), *(settings or [])]
    sections = {*Experiment.model_fields}
    own = [word for word in words if "=" in word and word.split("=")[0].split(".")[0] not in sections]
    base = read(None, [word for word in words if word not in own])
    variants = method_variants(methods, base, own)
    _carry_out(base, variants, seeds, jobs, targets, out, quiet)


def ablate(
    file: File = None,
    settings: Settings = None,
    seeds: Seeds = 1,
    jobs: Jobs = "auto",
    targets: Targets = None,
    out: Annotated[Path, typer.Option(help="Folder of the study; an interrupted one continues.")] = Path("ablation"),
    quiet: Quiet = False,
) -> None:
    """Run CaBaFL against its variants conf1 to conf5 and hard labels."""
    from cabafl.cli.run import read
    from cabafl.comparison.variants import ablation_variants

    base = read(file, settings)
    _carry_out(base, ablation_variants(base), seeds, jobs, targets, out, quiet)


def _carry_out(
    base: "Experiment",
    variants: Mapping[str, Mapping[str, Any]],
    seeds: int,
    jobs: str,
    targets: str | None,
    out: Path,
    quiet: bool,
) -> None:
    from cabafl.cli.report import parse_targets, write_report
    from cabafl.comparison.grid import claimed, make_grid, run_grid

    wanted, at_once = parse_targets(targets), _count(jobs)
    with claimed(out):
        cells = make_grid(base, variants, range(base.seed, base.seed + seeds), out)
        waiting = [cell for cell in cells if not cell.done]
        if not quiet and len(waiting) < len(cells):
            console.print(f"{len(cells) - len(waiting)} of {len(cells)} runs are finished already.")
        with _Bar(cells, enabled=not quiet) as bar:
            try:
                run_grid(cells, at_once, bar.update)
            except KeyboardInterrupt:
                console.print("Stopped. The same command continues.")
                raise typer.Exit(130) from None
        failed = [cell for cell in cells if cell.failure is not None]
        for cell in failed:
            tell("failed", f"{cell.label}, seed {cell.seed}: {cell.failure}")
        finished = {cell.folder: cell.label for cell in cells if cell.done}
        if finished:
            notes = [f"failed: {cell.label}, seed {cell.seed}: {cell.failure}" for cell in failed]
            write_report(finished, out, wanted, quiet, notes)
    if failed:
        raise typer.Exit(1)


def _count(jobs: str) -> int:
    from cabafl.execution.choice import worker_count

    if jobs == "auto":
        return worker_count("auto")
    if not jobs.isdigit() or int(jobs) < 1:
        raise UserError(f"--jobs = {jobs!r}: accepted: auto or a number from 1")
    return int(jobs)


class _Bar:
    """Progress over the whole grid."""

    def __init__(self, cells: "Sequence[GridRun]", enabled: bool) -> None:
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
        self._task = self._bar.add_task("", total=float(len(cells)))
        self._told: set[Path] = {cell.folder for cell in cells if cell.done}

    def __enter__(self) -> "_Bar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, cells: "Sequence[GridRun]") -> None:
        """Looks at all runs."""
        done = sum(cell.done for cell in cells)
        running = [c.label for c in cells if c.process is not None and c.process.poll() is None]
        text = f"{done}/{len(cells)} runs  now: {', '.join(running)}"
        self._bar.update(self._task, completed=sum(cell.progress() for cell in cells), description=text)
        for cell in cells:
            if cell.done and cell.folder not in self._told:
                self._told.add(cell.folder)
                if self._enabled and not self._live:
                    console.print(f"{done}/{len(cells)}  {cell.label}, seed {cell.seed}", soft_wrap=True)
