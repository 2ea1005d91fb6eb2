"""`cabafl finish`"""

from pathlib import Path
from typing import Annotated

import typer

from cabafl.cli.arguments import Quiet
from cabafl.cli.console import console, print_table


def finish(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of an interrupted or running simulation.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Where files are that were moved, e.g. data.root=/new/place.", metavar="[KEY=VALUE]..."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """End a simulation where it is, with model, summary and curve. `cabafl resume` can extend it later.

    A running one ends at its present time, an interrupted one at its last checkpoint.
    """
    from cabafl.cli.run import stoppable, summary_table, warn
    from cabafl.lifecycle.finishing import finish as finish_run
    from cabafl.lifecycle.finishing import summary_of
    from cabafl.recording.folder import CURVE, SUMMARY

    if (folder / SUMMARY).exists():
        summary_of(folder)
        console.print(f"{folder}: this run is already complete.", soft_wrap=True)
        return
    with stoppable(folder, f"cabafl finish {folder}", quiet):
        summary = finish_run(folder, warn=warn, settings=settings or [])
    if not quiet:
        print_table(summary_table(summary))
        console.print(f"Learning curve: {folder}/{CURVE}", soft_wrap=True)
