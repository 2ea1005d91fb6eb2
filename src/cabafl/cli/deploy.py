"""`cabafl deploy server | device | local`; the other commands are in `cli.deploy_init`, `_compare` and `_operate`."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from cabafl.cli import deploy_compare, deploy_init, deploy_operate
from cabafl.cli.arguments import ExperimentFile, Quiet, Settings
from cabafl.cli.console import console, print_table
from cabafl.cli.deploy_output import LogForm, make_log, outputs, require_deploy
from cabafl.cli.run import read_experiment, run_folder, stoppable, summary_table
from cabafl.cli.watch import Watch, exposing_metrics, watching
from cabafl.errors import UserError

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Run on real devices, over MQTT with TLS (pip install 'cabafl\\[deploy]')."""


app.command()(deploy_init.init)


@app.command()
def server(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Fleet folder.")],
    file: ExperimentFile = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: DIR/state/run.")] = None,
    metrics: Annotated[
        int | None, typer.Option(metavar="PORT", help="Serve Prometheus metrics to this machine on this port.")
    ] = None,
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
        stack.enter_context(exposing_metrics(metrics, [fleet.path, path.resolve()]))
        stack.enter_context(stoppable(path, f"cabafl deploy server {folder} ..."))
        listener, writer = outputs(stack, experiment, log, quiet)
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
    writer = make_log(log)
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
    watch: Watch = False,
    log: LogForm = "text",
    quiet: Quiet = False,
) -> None:
    """Run a whole fleet on this machine: real processes, broker, TLS and certificates; slow boards are imitated."""
    require_deploy()
    experiment = read_experiment(file, settings)
    from cabafl.deployment.testbed.testbed import Testbed, with_defaults

    experiment = with_defaults(experiment, devices)
    with ExitStack() as stack:
        bed = Testbed(stack.enter_context(run_folder(experiment, out)).resolve(), devices, time_scale)
        stack.enter_context(watching(watch, [bed.path]))
        stack.enter_context(stoppable(bed.path, f"the same command and --out {bed.path}"))
        listener, writer = outputs(stack, experiment, log, quiet)
        summary = bed.serve(experiment, listener, writer)
    _show(summary, bed.run, quiet)


app.command()(deploy_compare.compare)
app.command()(deploy_operate.status)
app.command()(deploy_operate.stop)
app.command()(deploy_operate.export)
app.command(name="set")(deploy_operate.change)


def _show(summary: dict[str, Any] | None, path: Path, quiet: bool) -> None:
    if quiet:
        return
    if summary is None:
        console.print(f"{path}: this run is already complete.", soft_wrap=True)
        return
    print_table(summary_table(summary))
    console.print(f"Learning curve: {path}/curve.png; report: cabafl report {path}", soft_wrap=True)
