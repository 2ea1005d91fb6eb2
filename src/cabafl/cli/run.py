"""`cabafl run` and `cabafl resume`"""

import itertools
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from cabafl.cli.arguments import ExperimentFile, Quiet, Settings, Until
from cabafl.cli.console import console, print_notice, print_table
from cabafl.cli.watch import Watch, watching
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.config import Experiment
    from cabafl.lifecycle.simulate import Result
    from cabafl.recording.scale import MetricInfo


def read_experiment(file: Path | None, settings: list[str] | None) -> "Experiment":
    """Loads the experiment of a command line. A word with ``=`` is a setting, any other the file, in any order."""
    from cabafl.checked import load_checked

    return load_checked(*file_and_settings(file, settings))


def file_and_settings(file: Path | None, settings: list[str] | None) -> tuple[Path | None, list[str]]:
    """Sorts the words of a command line; raises `UserError` for a second file."""
    words = [*([str(file)] if file is not None else []), *(settings or [])]
    files = [Path(word) for word in words if "=" not in word]
    if len(files) > 1:
        raise UserError(f"{files[1]}: a second experiment file; accepted: one file and section.key=value settings")
    return files[0] if files else None, [word for word in words if "=" in word]


def run(
    file: ExperimentFile = None,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder, new or empty; default: runs/DATASET-METHOD-seedSEED-TIME.")
    ] = None,
    until: Until = None,
    watch: Watch = False,
    quiet: Quiet = False,
) -> None:
    """Simulate one experiment in virtual time."""
    experiment = read_experiment(file, settings)
    from cabafl.cli.progress import Progress

    with (
        workers_ahead(experiment),
        run_folder(experiment, out) as folder,
        watching(watch, [folder]),
        Progress(experiment, enabled=not quiet) as progress,
        stoppable(folder, quiet=quiet),
    ):
        from cabafl.lifecycle.simulate import simulate  # loads torch, while the workers load theirs

        result = simulate(experiment, folder, progress, warn, until)
    show(result, quiet)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of an interrupted or finished run.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="How the rest is done, e.g. run.workers=4, and when it ends, e.g. run.virtual_time=24000.",
            metavar="[KEY=VALUE]...",
        ),
    ] = None,
    until: Until = None,
    quiet: Quiet = False,
) -> None:
    """Continue an interrupted run, or extend a finished one; the result equals that of one long run, byte for byte."""
    from cabafl.cli.progress import Progress
    from cabafl.lifecycle.simulate import changed_experiment, check_simulation
    from cabafl.lifecycle.simulate import resume as resume_run

    check_simulation(folder)
    experiment = changed_experiment(folder, settings or [])
    with Progress(experiment, enabled=not quiet) as progress, stoppable(folder, quiet=quiet):
        result = resume_run(folder, progress, warn, settings or [], until)
    if result is not None:
        show(result, quiet)
    elif not quiet:
        console.print(f"{folder}: this run is already complete.", soft_wrap=True)


@contextmanager
def stoppable(folder: Path, again: str | None = None, quiet: bool = False) -> Iterator[None]:
    """Turns Ctrl-C and SIGTERM into the exit code 128 + signal, a run that was to stop at a time into 0, and prints how
    to continue (``again``)."""
    from cabafl.lifecycle.stopping import Paused, Stopped

    again = again or f"cabafl resume {folder}"
    try:
        yield
    except Paused as paused:
        if not quiet:
            console.print(f"Stopped at t = {paused.time:g} s. Not complete; continue with: {again}", soft_wrap=True)
        raise typer.Exit from None
    except Stopped as stopped:
        console.print(f"Stopped. Not complete; continue with: {again}", soft_wrap=True)
        raise typer.Exit(128 + stopped.signal) from None
    except KeyboardInterrupt:
        console.print(f"Stopped at once. Not complete; continue with: {again}", soft_wrap=True)
        raise typer.Exit(130) from None


def warn(text: str) -> None:
    """Prints a warning: a problem from which the run recovered."""
    print_notice("warning", text)


def show(result: "Result", quiet: bool) -> None:
    """Prints the summary of a finished run unless ``quiet``."""
    if quiet:
        return
    from cabafl.recording.folder import CURVE

    print_table(summary_table(result.summary))
    console.print(f"Learning curve: {result.folder}/{CURVE}", soft_wrap=True)


def workers_ahead(experiment: "Experiment") -> AbstractContextManager[None]:
    """Starts the worker processes of the run before this process loads torch; the run takes them over."""
    from cabafl.execution.starting import early_workers, worker_count

    count = worker_count(experiment.run.workers) if experiment.run.executor == "local" else 0
    return early_workers(count) if count else nullcontext()


@contextmanager
def run_folder(experiment: "Experiment", out: Path | None) -> Iterator[Path]:
    """``out``, or a new folder of the default name. If nothing is written to a new one, it is removed again."""
    if out is not None:
        yield out
        return
    folder = new_folder(experiment)
    try:
        yield folder
    finally:
        with suppress(OSError):  # it has files
            folder.rmdir()


def new_folder(experiment: "Experiment") -> Path:
    """Creates the default run folder, ``runs/<data set>-<method>-seed<seed>-<date>-<time>``; never an existing one,
    also if two runs start in the same second."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    data = re.sub(r"\W+", "-", experiment.data.dataset).strip("-")
    name = f"{data}-{experiment.method.name.rpartition(':')[2]}-seed{experiment.seed}-{stamp}"
    for count in itertools.count(1):
        folder = Path("runs") / (name if count == 1 else f"{name}-{count}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"{folder}: cannot be made: {error.strerror}; accepted: --out DIR") from None
        return folder
    raise AssertionError("there is always another number")


def _metric_rows(summary: dict[str, Any]) -> dict[str, str]:
    """The lines about the metric of the run."""
    from cabafl.recording.scale import metric_info

    metric = metric_info(summary.get("metric"))
    unit, final, averaged = " (%)" * metric.percent, f"final_{metric.name}", summary.get("averaged")

    def text(value: float | None) -> str:
        return "too few versions" if value is None else metric.text(value)

    def window(figures: dict[str, Any]) -> str:
        best = text(figures["best_window_mean"])
        deviation = figures["best_window_deviation"]
        return best if deviation is None else f"{best} ± {metric.text(deviation)}"

    return {
        f"{metric.title}, best window of {summary['window']} versions{unit}": window(summary),
        f"final {metric.title}{unit}": text(summary[final]),
        **({} if averaged is None else {f"averaged model, best window{unit}": window(averaged)}),
        **({} if averaged is None else {f"averaged model, final {metric.title}{unit}": text(averaged[final])}),
        **_device_rows(summary, metric, unit),
        f"stability (deviation of the moving average){unit}": text(summary["stability"]),
        f"the same around its trend{unit}": text(summary["stability_detrended"]),
    }


def _device_rows(summary: dict[str, Any], metric: "MetricInfo", unit: str) -> dict[str, str]:
    """The lines about single devices, if they were evaluated."""
    if "devices" not in summary:
        return {}
    mean, worst = (metric.text(summary[f"final_devices_{name}"]) for name in ("mean", "worst_decile"))
    count = len(summary["devices"]["values"])
    return {
        f"on {count} devices' own samples: mean, worst decile{unit}": f"{mean}, {worst}",
        "the same: Jain index": f"{summary['final_devices_jain']:.3f}",
    }


def summary_table(summary: dict[str, Any]) -> Table:
    """Formats ``summary.json`` for the terminal."""
    losses = ", ".join(f"{n} {reason}" for reason, n in summary["losses"].items()) or "none"
    rows = {
        **_metric_rows(summary),
        "fairness (variance of selection shares)": "-" if summary["fairness"] is None else f"{summary['fairness']:.2e}",
        f"{summary['clock']} time (s)": f"{summary['time']:,.0f}",
        "versions published": f"{summary['versions']:,}",
        "uploads": f"{summary['uploads']:,}",
        "jobs lost": losses,
        "models transferred": f"{summary['transfers']:,} ({summary['bytes'] / 1e6:,.0f} MB)",
        "energy of the devices (kJ)": f"{summary['joules'] / 1e3:,.1f}",
        "mean staleness": "-" if summary["mean_staleness"] is None else f"{summary['mean_staleness']:.2f}",
    }
    if "epsilon" in summary:
        rows["privacy spent (largest epsilon of any device)"] = f"{summary['epsilon']:.2f}"
    if summary["clock"] == "virtual":
        rows["wall time (s)"] = f"{summary['wall_seconds']:,.1f}"
    table = Table(title=f"{summary['method']}, seed {summary['seed']}", show_header=False, title_justify="left")
    for name, value in rows.items():
        table.add_row(name, value)
    return table
