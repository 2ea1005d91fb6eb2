"""`cabafl config`"""

from pathlib import Path
from typing import Annotated

import typer

from cabafl.cli.console import console


def config(
    file: Annotated[Path | None, typer.Argument(help="An experiment file; without it, the defaults.")] = None,
    settings: Annotated[list[str] | None, typer.Argument(help="section.key=value", metavar="[KEY=VALUE]...")] = None,
) -> None:
    """Print the complete experiment file, every key explained."""
    from cabafl.assembly import make_method
    from cabafl.cli.run import read
    from cabafl.toml import experiment_toml

    experiment = read(file, settings)
    parameters = make_method(experiment).parameters
    console.print(experiment_toml(experiment, parameters, comments=True), end="", soft_wrap=True)
