"""`cabafl bench`"""

from typing import Annotated

import typer
from rich.table import Table

from cabafl.cli.console import console

app = typer.Typer(help="Measure the toolkit on this machine.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `bench` a group of commands."""


@app.command()
def selection(
    devices: Annotated[list[int], typer.Option(help="Numbers of devices to measure.")] = [100, 1_000, 10_000, 100_000],  # noqa: B006
    width: Annotated[int, typer.Option(help="Length of a feature vector.")] = 512,
    repetitions: Annotated[int, typer.Option(help="Selections per row.", min=1)] = 50,
) -> None:
    """Time of one CaBaFL device selection, all devices being candidates."""
    from cabafl.bench.selection import measure

    table = Table(title=f"one device selection, d = {width}, K = 10, one thread", title_justify="left")
    for heading in ("devices", "median (ms)", "fastest (ms)", "slowest (ms)"):
        table.add_column(heading, justify="right")
    for count in devices:
        row = measure(count, width, repetitions=repetitions)
        table.add_row(f"{row.devices:,}", f"{row.median:.3f}", f"{row.lowest:.3f}", f"{row.highest:.3f}")
    console.print(table)
