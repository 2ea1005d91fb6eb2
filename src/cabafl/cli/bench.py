"""`cabafl bench`"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from cabafl.bench import SECTIONS
from cabafl.cli.console import console
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.bench.report import BenchSection

app = typer.Typer()

Quick = Annotated[bool, typer.Option("--quick", help="Use small sizes, for a first impression.")]
Repetitions = Annotated[
    int | None, typer.Option(help="Repetitions of each measurement; default: depends on the benchmark.", min=1)
]
Out = Annotated[Path | None, typer.Option(help="Folder for bench.json and bench.md; default: nothing is written.")]


@app.callback(invoke_without_command=True)
def _group(context: typer.Context, quick: Quick = False, repetitions: Repetitions = None, out: Out = None) -> None:
    """Measure the speed and memory of cabafl on this machine.

    Competing programs are measured in turns and compared by their ratio, with its spread. Without a command, runs all
    benchmarks but deploy and soak.
    """
    if context.invoked_subcommand is None:
        _measure(SECTIONS, quick, repetitions, out)


@app.command("all")
def everything(quick: Quick = False, repetitions: Repetitions = None, out: Out = None) -> None:
    """Run all benchmarks but deploy and soak."""
    _measure(SECTIONS, quick, repetitions, out)


@app.command()
def simulator(quick: Quick = False, repetitions: Repetitions = None, out: Out = None) -> None:
    """Compare the simulator with bare torch loops that do the same steps."""
    _measure(["simulator"], quick, repetitions, out)


@app.command()
def engine(quick: Quick = False, repetitions: Repetitions = None, out: Out = None) -> None:
    """Measure events per second without training, for growing fleets."""
    _measure(["engine"], quick, repetitions, out)


@app.command()
def selection(
    devices: Annotated[
        list[int] | None, typer.Option(help="Number of devices; may be repeated; default: several sizes.")
    ] = None,
    width: Annotated[int, typer.Option(help="Length of a feature vector; only with --devices.")] = 512,
    quick: Quick = False,
    repetitions: Repetitions = None,
    out: Out = None,
) -> None:
    """Measure the time of one device selection and of one aggregation."""
    if not devices:
        _measure(["selection"], quick, repetitions, out)
        return
    from cabafl.bench.selection import section

    _finish([_shown(section([(count, width, 10) for count in devices], [], repetitions or 50))], out)


@app.command()
def memory(quick: Quick = False, repetitions: Repetitions = None, out: Out = None) -> None:
    """Measure the server's peak memory for growing fleets, caches and models; one process per size, no repetitions."""
    _measure(["memory"], quick, repetitions, out)


@app.command()
def toolkits(quick: Quick = False, repetitions: Repetitions = None, out: Out = None) -> None:
    """Run the same FedAvg workload on pfl and Flower's simulation, if installed (pip install 'cabafl\\[bench]')."""
    _measure(["toolkits"], quick, repetitions, out)


@app.command()
def deploy(quick: Quick = False, repetitions: Repetitions = None, out: Out = None) -> None:
    """Measure the overhead of a dispatch over MQTT, beside Flower's (pip install 'cabafl\\[deploy,flower]').

    Also the dispatches per second, and the load of connected devices.
    """
    _measure(["deploy"], quick, repetitions, out)


@app.command()
def soak(
    out: Annotated[Path, typer.Option(help="New folder for fleet, logs, run, bench.json and bench.md.")],
    devices: Annotated[int, typer.Option(min=4, max=5000, help="Number of light devices.")] = 1000,
    minutes: Annotated[float, typer.Option(min=0.5, help="Length of the run.")] = 30.0,
    model: Annotated[str, typer.Option(help="small or '45 MB'.")] = "small",
    method: Annotated[str, typer.Option(help="See `cabafl methods`.")] = "cabafl",
    slots: Annotated[int, typer.Option(min=1, help="Devices that train at the same time.")] = 100,
) -> None:
    """Run a large fleet on loopback; kill devices and server, restart the broker; measure it and check its record."""
    from cabafl.bench.soak import MODELS, Soak
    from cabafl.validation import unknown

    if model not in MODELS:
        raise unknown("--model", model, MODELS)
    if out.exists():
        raise UserError(f"--out = {out}: exists; accepted: a new folder")
    out.mkdir(parents=True)
    _finish([_shown(Soak(out.resolve(), devices, minutes, model, method, slots).run())], out)


def _measure(names: tuple[str, ...] | list[str], quick: bool, repetitions: int | None, out: Path | None) -> None:
    from cabafl.bench.sections import measure

    sections: list[BenchSection] = []
    for name in names:
        sections.append(_shown(measure(name, quick, repetitions)))
        _finish(sections, out)  # after each section, so an interrupted benchmark keeps the finished ones


def _shown(section: "BenchSection") -> "BenchSection":
    for content in section.all_tables():
        table = Table(title=f"{section.title}: {content.title}", title_justify="left")
        for i, heading in enumerate(content.headings):
            table.add_column(heading, justify="left" if i == 0 else "right")
        for row in content.rows:
            table.add_row(*row)
        console.print(table)
    for note in section.notes:
        console.print(f"* {note}")
    console.print()
    return section


def _finish(sections: list["BenchSection"], out: Path | None) -> None:
    from cabafl.bench.report import describe, machine, write

    where = machine()
    console.print(describe(where))
    if out is not None:
        write(out, sections, where)
        console.print(f"Written: {out / 'bench.json'} and {out / 'bench.md'}", soft_wrap=True)
