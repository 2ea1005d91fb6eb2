"""The `cabafl` command."""

import gc
import os
import re
import signal
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any

import typer

from cabafl.cli import (
    bench,
    compare,
    config,
    data,
    deploy,
    export,
    finish,
    lists,
    observe,
    report,
    reproduce,
    run,
    sweep,
    tune,
    watch,
)
from cabafl.cli.console import fail
from cabafl.errors import RunStopped, UserError
from cabafl.processes.lifeline import PARENT, die_with_parent

app = typer.Typer(
    name="cabafl",
    help="Asynchronous federated learning: CaBaFL and other methods, simulated or on real devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
WRONG_USAGE: type[Exception] = typer.BadParameter.__bases__[
    0
]  # an option that is unknown, missing or has no such value


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cabafl {version_of('cabafl')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command("run")(run.run)
app.command("resume")(run.resume)
app.command("finish")(finish.finish)
app.command("export")(export.export)
app.command("compare")(compare.compare)
app.command("sweep")(sweep.sweep)
app.command("tune")(tune.tune)
app.command("ablate")(compare.ablate)
app.command("observe")(observe.observe)
app.command("report")(report.report)
app.command("watch")(watch.watch)
app.command("reproduce")(reproduce.reproduce)
app.command("methods")(lists.methods)
app.command("models")(lists.models)
app.command("config")(config.config)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
app.add_typer(deploy.app, name="deploy")


def main() -> None:
    """Entry point. A `UserError` is one line and exit code 2, a `RunStopped` one line and exit code 1."""
    gc.set_threshold(10_000)  # loading torch makes 500,000 objects: looked through seldom, a run starts 0.2 s sooner
    if PARENT in os.environ:  # a run of a comparison: stops with a checkpoint if the comparison dies
        die_with_parent(int(os.environ[PARENT]), signal.SIGTERM)
    # For the user's models and methods, given as package.module:Class. Last: a file queue.py hides no module of Python.
    sys.path.append(str(Path.cwd()))
    try:
        ended = app(prog_name="cabafl", standalone_mode=False)
    except WRONG_USAGE as error:
        _fail_usage(error)
    except typer.Abort:  # the end of the input at a question
        fail("no answer", code=1)
    except UserError as error:
        fail(str(error))
    except RunStopped as error:
        fail(str(error), code=1)
    else:
        sys.exit(ended if isinstance(ended, int) else 0)


def _fail_usage(error: Any) -> None:
    """One line, like all other mistakes, instead of typer's box; without any word, the help has been printed."""
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.exit(error.exit_code)
    both = r"( Did you mean [^?]*\?) \(?Did you mean [^?]*\?\)?"  # click and typer both suggest
    message = re.sub(both, r"\1", error.format_message())
    help_of = error.ctx.command_path if error.ctx else "cabafl"
    fail(f"{message.rstrip('.')}; see `{help_of} --help`")
