"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ExperimentFile = Annotated[Path | None, typer.Argument(help="Experiment file (TOML); default: the built-in defaults.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        help="Settings as section.key=value, e.g. data.beta=0.2; they override the file.", metavar="[KEY=VALUE]..."
    ),
]
Targets = Annotated[
    str | None,
    typer.Option(
        help="Target accuracies in percent, e.g. 40,45, or values of another metric; default: chosen from the curves."
    ),
]
Until = Annotated[
    float | None,
    typer.Option(
        help="Stop at this virtual time, in seconds, with a checkpoint; `cabafl resume` continues.", metavar="SECONDS"
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only warnings and errors.")]
