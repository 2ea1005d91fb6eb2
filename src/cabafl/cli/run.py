"""`cabafl run`"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from cabafl.cli.console import console, tell
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.config import Experiment
    from cabafl.lifecycle.simulate import Result


def read(file: Path | None, settings: list[str] | None) -> "Experiment":
    """File and settings of a command line; words with = are settings, the other one is the file."""
    from cabafl.config import load_experiment

    words = [*([str(file)] if file is not None else []), *(settings or [])]
    files = [Path(word) for word in words if "=" not in word]
    if len(files) > 1:
        raise UserError(f"{files[1]}: a second experiment file; accepted: one file and section.key=value settings")
    return load_experiment(files[0] if files else None, [word for word in words if "=" in word])


def run(
    file: Annotated[Path | None, typer.Argument(help="An experiment file (TOML); without it, the defaults.")] = None,
    settings: Annotated[list[str] | None, typer.Argument(help="section.key=value", metavar="[KEY=VALUE]...")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; must be new or empty.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Run one experiment in virtual time."""
    experiment = read(file, settings)
    from cabafl.cli.progress import Progress
    from cabafl.lifecycle.simulate import simulate

    folder = out or new_folder(experiment)
    with Progress(experiment, enabled=not quiet) as progress, stoppable(folder):
        result = simulate(experiment, folder, progress, warn)
    show(result, quiet)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of an interrupted run.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="run.workers=N and the like", metavar="[KEY=VALUE]...")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Continue an interrupted run, to the same bytes."""
    from cabafl.cli.progress import Progress
    from cabafl.config import load_experiment
    from cabafl.lifecycle.simulate import resume as go_on

    path = folder / "experiment.toml"
    experiment = load_experiment(path if path.exists() else None)
    with Progress(experiment, enabled=not quiet) as progress, stoppable(folder):
        result = go_on(folder, progress, warn, settings or [])
    if result is not None:
        show(result, quiet)
    elif not quiet:
        console.print(f"{folder}: this run is complete already.", soft_wrap=True)


@contextmanager
def stoppable(folder: Path, again: str | None = None) -> Iterator[None]:
    """Ctrl-C and SIGTERM end a run with what can be done about it."""
    from cabafl.lifecycle.stopping import Stopped

    again = again or f"cabafl resume {folder}"
    try:
        yield
    except Stopped as stopped:
        console.print(f"Stopped. Not complete; continue with: {again}", soft_wrap=True)
        raise typer.Exit(128 + stopped.signal) from None
    except KeyboardInterrupt:
        console.print(f"Stopped at once. Not complete; continue with: {again}", soft_wrap=True)
        raise typer.Exit(130) from None


def warn(text: str) -> None:
    """Something went wrong and was mended."""
    tell("warning", text)


def show(result: "Result", quiet: bool) -> None:
    """The summary of a finished run."""
    if not quiet:
        console.print(summary_table(result.summary))
        console.print(f"Learning curve: {result.folder}/curve.png", soft_wrap=True)


def new_folder(experiment: "Experiment") -> Path:
    """A name for a run folder nobody named."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{experiment.data.dataset}-{experiment.method.name.rpartition(':')[2]}-seed{experiment.seed}-{stamp}"
    folder = Path("runs") / name
    count = 1
    while folder.exists():
        count += 1
        folder = Path("runs") / f"{name}-{count}"
    return folder


def summary_table(summary: dict[str, Any]) -> Table:
    """The figures of a finished run."""

    def percent(value: float | None) -> str:
        return "too few evaluations" if value is None else f"{100 * value:.2f}"

    best = percent(summary["best_window_mean"])
    if summary["best_window_deviation"] is not None:
        best += f" ± {100 * summary['best_window_deviation']:.2f}"
    losses = ", ".join(f"{n} {reason}" for reason, n in summary["losses"].items()) or "none"
    rows = {
        f"accuracy, best {summary['window']}-evaluation window (%)": best,
        "accuracy at the end (%)": percent(summary["final_accuracy"]),
        "stability (deviation of the moving average) (%)": percent(summary["stability"]),
        "fairness (variance of selections)": "-" if summary["fairness"] is None else f"{summary['fairness']:.2e}",
        f"{summary['clock']} time (s)": f"{summary['time']:,.0f}",
        "versions published": f"{summary['versions']:,}",
        "uploads": f"{summary['uploads']:,}",
        "jobs lost": losses,
        "models transferred": f"{summary['transfers']:,} ({summary['bytes'] / 1e6:,.0f} MB)",
        "energy of the devices (kJ)": f"{summary['joules'] / 1e3:,.1f}",
        "mean staleness": "-" if summary["mean_staleness"] is None else f"{summary['mean_staleness']:.2f}",
    }
    if "epsilon" in summary:
        rows["privacy spent, epsilon of the device with most"] = f"{summary['epsilon']:.2f}"
    if summary["clock"] == "virtual":
        rows["wall time (s)"] = f"{summary['wall_seconds']:,.1f}"
    table = Table(title=f"{summary['method']}, seed {summary['seed']}", show_header=False, title_justify="left")
    for name, value in rows.items():
        table.add_row(name, value)
    return table
