"""What the commands of `cabafl deploy` share: log lines, progress bar, and whether the extra is installed."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cabafl.cli.console import LiveFile, console
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.config import Experiment
    from cabafl.deployment.log import Log
    from cabafl.lifecycle.run import Listener

LogForm = Annotated[str, typer.Option("--log", help="Form of the log lines on standard error: text or json.")]


def require_deploy() -> None:
    """Raises `UserError` if the extra is not installed."""
    try:
        import cryptography  # noqa: F401
        import paho.mqtt.client  # noqa: F401
    except ImportError as error:
        raise UserError(f"real devices need {error.name}: pip install 'cabafl[deploy]'") from None


def outputs(stack: ExitStack, experiment: "Experiment", form: str, quiet: bool) -> tuple["Listener | None", "Log"]:
    """A bar and the log above it on a terminal, else the log only, which has a line of progress every minute."""
    if quiet or not console.is_terminal:
        return None, make_log(form)
    from cabafl.cli.progress import Progress

    bar = stack.enter_context(Progress(experiment, enabled=True, wall=True))
    return bar, make_log(form, LiveFile())


def make_log(form: str, file: Any = None) -> "Log":
    """The log in the form of ``--log``; raises `UserError` if there is no such form."""
    from cabafl.deployment.log import Log

    if form == "text":
        return Log("text", file)
    if form == "json":
        return Log("json", file)
    raise UserError(f"--log = {form!r}: unknown; accepted: text, json")
