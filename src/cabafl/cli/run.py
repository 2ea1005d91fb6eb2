"""`cabafl run`"""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from cabafl.cli.console import console

if TYPE_CHECKING:
    from cabafl.config import Experiment


def read(file: Path | None, settings: list[str] | None) -> "Experiment":
    """File and settings of a command line; the file may be left out, then the first word is a setting."""
    from cabafl.config import load_experiment

    words = list(settings or [])
    if file is not None and "=" in str(file):
        words.insert(0, str(file))
        file = None
    return load_experiment(file, words)


def run(
    file: Annotated[Path | None, typer.Argument(help="An experiment file (TOML); without it, the defaults.")] = None,
    settings: Annotated[list[str] | None, typer.Argument(help="section.key=value", metavar="[KEY=VALUE]...")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; must be new or empty.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Run one experiment in virtual time."""
    experiment = read(file, settings)
    from cabafl.assembly import assemble
    from cabafl.cli.progress import Progress
    from cabafl.runner import run_parts

    folder = out or _new_folder(experiment)
    parts = assemble(experiment)
    with Progress(experiment, enabled=not quiet) as progress:
        try:
            result = run_parts(parts, folder, progress)
        except KeyboardInterrupt:
            text = f"Stopped. What happened so far is in {folder} (no summary.json: the run is not complete)."
            console.print(text, soft_wrap=True)
            raise typer.Exit(130) from None
    if not quiet:
        console.print(summary_table(result.summary))
        console.print(f"Learning curve: {folder / 'curve.png'}", soft_wrap=True)


def _new_folder(experiment: "Experiment") -> Path:
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
        f"accuracy, best {summary['window']}-evaluation window [%]": best,
        "accuracy at the end [%]": percent(summary["final_accuracy"]),
        "stability (deviation of the moving average) [%]": percent(summary["stability"]),
        "fairness (variance of selections)": "-" if summary["fairness"] is None else f"{summary['fairness']:.2e}",
        "virtual time [s]": f"{summary['virtual_time']:,.0f}",
        "aggregations": f"{summary['aggregations']:,}",
        "uploads": f"{summary['uploads']:,}",
        "jobs lost": losses,
        "models transferred": f"{summary['transfers']:,} ({summary['bytes'] / 1e6:,.0f} MB)",
        "energy of the devices [kJ]": f"{summary['joules'] / 1e3:,.1f}",
        "mean staleness": "-" if summary["mean_staleness"] is None else f"{summary['mean_staleness']:.2f}",
        "wall time [s]": f"{summary['wall_seconds']:,.1f}",
    }
    table = Table(title=f"{summary['method']}, seed {summary['seed']}", show_header=False, title_justify="left")
    for name, value in rows.items():
        table.add_row(name, value)
    return table
