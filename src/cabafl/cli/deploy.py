"""`cabafl deploy`: everything but `init` (`cli.deploy_init`) and the operator's commands (`cli.deploy_operate`)."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cabafl.cli import deploy_init, deploy_operate
from cabafl.cli.arguments import ExperimentFile, Quiet, Settings
from cabafl.cli.console import LiveFile, console
from cabafl.cli.run import new_folder, read_experiment, stoppable, summary_table
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.config import Experiment
    from cabafl.deployment.log import Log
    from cabafl.lifecycle.run import Listener

app = typer.Typer(no_args_is_help=True)

LogForm = Annotated[str, typer.Option("--log", help="Form of the log lines on standard error: text or json.")]


@app.callback()
def _group() -> None:
    """Run on real devices, over MQTT with TLS (pip install 'cabafl\\[deploy]')."""


def require_deploy() -> None:
    """Raises `UserError` if the extra is not installed."""
    try:
        import cryptography  # noqa: F401
        import paho.mqtt.client  # noqa: F401
    except ImportError as error:
        raise UserError(f"real devices need {error.name}: pip install 'cabafl[deploy]'") from None


app.command()(deploy_init.init)


@app.command()
def server(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Fleet folder.")],
    file: ExperimentFile = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: DIR/state/run.")] = None,
    log: LogForm = "text",
    quiet: Quiet = False,
) -> None:
    """Run an experiment on the fleet, or continue it after a restart. The broker must be running."""
    require_deploy()
    experiment = read_experiment(file, settings)
    from cabafl.deployment.folder.layout import FleetFolder
    from cabafl.deployment.mqtt.fleet import MqttFleet
    from cabafl.deployment.server.operator import COMMANDS, STATUS
    from cabafl.deployment.server.serve import Station, serve

    fleet = FleetFolder.load(folder)
    path = out or fleet.state / "run"
    with ExitStack() as stack:
        stack.enter_context(stoppable(path, f"cabafl deploy server {folder} ..."))
        listener, writer = _outputs(stack, experiment, log, quiet)
        station = Station(path, writer, fleet.state / STATUS, fleet.state / COMMANDS, listener)
        summary = serve(experiment, MqttFleet(fleet), station)
    _show(summary, path, quiet)


@app.command()
def device(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the device, or with --id of the fleet.")],
    number: Annotated[int | None, typer.Option("--id", help="Number of the device in the fleet folder.")] = None,
    log: LogForm = "text",
) -> None:
    """Take part as a device until stopped, in one experiment after the other."""
    require_deploy()
    import logging

    from cabafl.deployment.device.loop import DeviceLoop
    from cabafl.deployment.device.participant import Participant
    from cabafl.deployment.folder.layout import Device, FleetFolder
    from cabafl.deployment.log import LogHandler
    from cabafl.deployment.mqtt.fleet import device_account

    if number is not None:
        folders = FleetFolder.load(folder).device_folders()
        if number not in folders:
            raise UserError(f"--id = {number}: no such device; accepted: {', '.join(map(str, folders)) or 'none'}")
        folder = folders[number]
    own = Device.load(folder)
    sys.path.append(str(own.folder))  # the user's data loader may be next to device.toml
    writer = _log(log)
    logging.basicConfig(level=logging.INFO, handlers=[LogHandler(writer)])
    DeviceLoop(own.id, device_account(own), Participant(own), writer).run()


@app.command()
def local(
    file: ExperimentFile = None,
    settings: Settings = None,
    devices: Annotated[int, typer.Option(min=1, max=1000, help="Number of device processes.")] = 10,
    out: Annotated[
        Path | None, typer.Option(help="Folder for fleet, logs and run; default: runs/DATASET-METHOD-seedSEED-TIME.")
    ] = None,
    time_scale: Annotated[
        float, typer.Option(min=0.01, help="Speed-up over the training times of the imitated boards.")
    ] = 5.0,
    log: LogForm = "text",
    quiet: Quiet = False,
) -> None:
    """Run a whole fleet on this machine: real processes, broker, TLS and certificates; slow boards are imitated."""
    require_deploy()
    experiment = read_experiment(file, settings)
    from cabafl.deployment.testbed.testbed import Testbed, with_defaults

    bed = Testbed((out or new_folder(experiment)).resolve(), devices, time_scale)
    experiment = with_defaults(experiment, devices)
    with ExitStack() as stack:
        stack.enter_context(stoppable(bed.path, f"the same command and --out {bed.path}"))
        listener, writer = _outputs(stack, experiment, log, quiet)
        summary = bed.serve(experiment, listener, writer)
    _show(summary, bed.run, quiet)


app.command()(deploy_operate.status)
app.command()(deploy_operate.stop)
app.command()(deploy_operate.export)
app.command(name="set")(deploy_operate.change)


def _outputs(stack: ExitStack, experiment: "Experiment", form: str, quiet: bool) -> tuple["Listener | None", "Log"]:
    """A bar and the log above it on a terminal, else the log only, which has a line of progress every minute."""
    if quiet or not console.is_terminal:
        return None, _log(form)
    from cabafl.cli.progress import Progress

    bar = stack.enter_context(Progress(experiment, enabled=True, wall=True))
    return bar, _log(form, LiveFile())


def _log(form: str, file: Any = None) -> "Log":
    from cabafl.deployment.log import Log

    if form == "text":
        return Log("text", file)
    if form == "json":
        return Log("json", file)
    raise UserError(f"--log = {form!r}: unknown; accepted: text, json")


def _show(summary: dict[str, Any] | None, path: Path, quiet: bool) -> None:
    if quiet:
        return
    if summary is None:
        console.print(f"{path}: this run is already complete.", soft_wrap=True)
        return
    console.print(summary_table(summary))
    console.print(f"Learning curve: {path}/curve.png; report: cabafl report {path}", soft_wrap=True)
