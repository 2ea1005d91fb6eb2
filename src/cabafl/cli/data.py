"""`cabafl data list | fetch | show | convert`"""

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from cabafl.cli.arguments import Settings
from cabafl.cli.console import console, print_table
from cabafl.cli.convert import convert
from cabafl.cli.lists import NARROW_LISTS
from cabafl.errors import UserError

app = typer.Typer(help="List, download and convert data sets, and draw how they are split.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the data sets: how to get them, and which are there."""
    from cabafl.data.catalogue import BUILT_IN, DESCRIPTIONS, HUB, data_home, is_present

    table = Table()
    for heading in ("data set", "description", "classes", "users", "how to get it", "there"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "data set")
    for name, info in [*DESCRIPTIONS.items(), ("hf:NAME", HUB)]:
        get = f"cabafl data fetch {name}" if info.fetchable else info.get
        there = ("yes" if is_present(name) else "no") if info.fetchable else "yes" if name in BUILT_IN else "-"
        table.add_row(name, info.what, str(info.classes or "-"), "yes" if info.users else "no", get, there)
    print_table(table, NARROW_LISTS, console)
    console.print(f"there: built in, or fetched to the folder of that name in {data_home()}", soft_wrap=True)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A name from `cabafl data list`.")],
    root: Annotated[
        Path | None, typer.Option(help="Target folder; default: NAME in $CABAFL_DATA, else in ~/.cache/cabafl/data.")
    ] = None,
    given: Annotated[
        Path | None,
        typer.Option("--from", help="An archive, file or folder that you have already; nothing is downloaded."),
    ] = None,
) -> None:
    """Download a data set and verify it; if that fails, the target folder is unchanged. Interrupted downloads
    continue when you repeat the command."""
    from cabafl.data.fetch import fetch as get

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def report(text: str, done: int, total: int) -> None:
            if done == total == 0:
                console.print(text, soft_wrap=True)
                return
            if text not in tasks:
                tasks[text] = progress.add_task(text, total=total or None)
            progress.update(tasks[text], completed=done, total=total or None)

        folder = get(name, root, report, given)
    console.print(f"{name}: {folder}", soft_wrap=True)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name from `cabafl data list`.")],
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="Figure: a .png, .svg or .pdf file; default: partition-NAME.png.")
    ] = None,
) -> None:
    """Draw how many samples of each class each device holds."""
    from cabafl.config import load_experiment
    from cabafl.reporting.figure_file import figure_path
    from cabafl.reporting.partition import class_counts, draw_partition
    from cabafl.samples import make_data

    path = figure_path(out or Path(f"partition-{re.sub(r'[^0-9A-Za-z_.-]+', '-', name)}.png"))
    experiment = load_experiment(None, [*(settings or []), f'data.dataset="{name}"'])
    dataset, partition = make_data(experiment)
    section = experiment.data
    sizes = partition.sizes
    if not dataset.has_classes:
        raise UserError(
            f"{name}: has no classes to draw; its {len(partition)} devices have {sizes.min()} to {sizes.max()} samples"
        )
    counts = class_counts(partition, dataset.train.y.numpy(), dataset.classes)
    how = (
        f"{section.partition}, beta {section.beta}"
        if section.partition in ("dirichlet", "coarse-balanced")
        else section.partition
    )
    title = f"{name}: {len(partition)} devices, {how}, seed {experiment.seed}"
    draw_partition(partition, dataset.train.y, dataset.classes, title, path)
    console.print(
        f"{title}\n{sizes.sum():,} of {len(dataset.train):,} training samples, {len(dataset.test):,} test samples of "
        f"shape {dataset.input_shape}\nper device {sizes.min()} to {sizes.max()} samples, mean {sizes.mean():.1f}; "
        f"{(counts > 0).sum(axis=1).mean():.1f} of {dataset.classes} classes on average\nFigure: {path}",
        soft_wrap=True,
    )


app.command()(convert)
