"""`cabafl deploy`"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from cabafl.cli.arguments import ExperimentFile, Quiet, Settings
from cabafl.cli.console import console
from cabafl.cli.deploy_init import init
from cabafl.cli.run import new_folder, read_experiment, stoppable, summary_table, warn
from cabafl.errors import UserError

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Run on real devices, through Flower (pip install 'cabafl\\[deploy]')."""


app.command()(init)


@app.command()
def server(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Fleet folder.")],
    file: ExperimentFile = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: DIR/state/run.")] = None,
    quiet: Quiet = False,
) -> None:
    """Run an experiment on the fleet, or continue it after a restart. The SuperLink must be running."""
    from cabafl.deployment.flower.version import require_flower

    require_flower()
    experiment = read_experiment(file, settings)
    from cabafl.cli.progress import Progress
    from cabafl.deployment.flower.superlink import SuperLink
    from cabafl.deployment.folder.layout import FleetFolder
    from cabafl.deployment.server.serve import serve
    from cabafl.deployment.server.status import STATUS

    fleet = FleetFolder.load(folder)
    path = out or fleet.state / "run"
    again = f"cabafl deploy server {folder} ..."
    with Progress(experiment, enabled=not quiet, wall=True) as progress, stoppable(path, again):
        summary = serve(experiment, SuperLink(fleet), path, status=fleet.state / STATUS, listener=progress, warn=warn)
    _show(summary, path, quiet)


@app.command()
def device(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the device, or with --id of the fleet.")],
    number: Annotated[int | None, typer.Option("--id", help="Number of the device in the fleet folder.")] = None,
) -> None:
    """Take part as a device until stopped."""
    from cabafl.deployment.flower.version import require_flower

    require_flower()
    import logging

    from cabafl.deployment.device.loop import serve as answer
    from cabafl.deployment.device.participant import Participant
    from cabafl.deployment.flower.internals import Link
    from cabafl.deployment.folder.layout import CA, PRIVATE_KEY, Device, FleetFolder

    if number is not None:
        folders = FleetFolder.load(folder).device_folders()
        if number not in folders:
            raise UserError(f"--id = {number}: no such device; accepted: {', '.join(map(str, folders)) or 'none'}")
        folder = folders[number]
    own = Device.load(folder)
    sys.path.insert(0, str(own.folder))  # the user's data loader may be next to device.toml
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    answer(
        Link(own.server, own.folder / CA),
        Participant(own),
        private_key=own.folder / PRIVATE_KEY,
        node_config={"partition-id": own.partition},
        heartbeat=own.heartbeat,
    )


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Fleet folder, on the server.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the state of the run and of each device: the model it holds and when it was last seen."""
    import json

    from cabafl.deployment.folder.layout import FleetFolder
    from cabafl.deployment.server.status import STATUS, read_status

    found = read_status(FleetFolder.load(folder).state / STATUS)
    if as_json:
        console.print_json(json.dumps(found))
    else:
        _show_status(found)


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
    quiet: Quiet = False,
) -> None:
    """Run a whole fleet on this machine: real processes, TCP, TLS and keys; slow boards are imitated."""
    from cabafl.deployment.flower.version import require_flower

    require_flower()
    experiment = read_experiment(file, settings)
    from cabafl.cli.progress import Progress
    from cabafl.deployment.testbed.testbed import Testbed, with_defaults

    bed = Testbed((out or new_folder(experiment)).resolve(), devices, time_scale)
    experiment = with_defaults(experiment, devices)
    again = f"the same command and --out {bed.path}"
    with Progress(experiment, enabled=not quiet, wall=True) as progress, stoppable(bed.path, again):
        summary = bed.serve(experiment, progress, warn)
    _show(summary, bed.run, quiet)


def _show(summary: dict[str, Any] | None, path: Path, quiet: bool) -> None:
    if quiet:
        return
    if summary is None:
        console.print(f"{path}: this run is already complete.", soft_wrap=True)
        return
    console.print(summary_table(summary))
    console.print(f"Learning curve: {path}/curve.png; report: cabafl report {path}", soft_wrap=True)


def _show_status(found: dict[str, Any]) -> None:
    import time

    now = time.time()
    accuracy = "-" if found["accuracy"] is None else f"{100 * found['accuracy']:.2f} %"
    losses = ", ".join(f"{n} {reason}" for reason, n in found["losses"].items()) or "none"
    console.print(
        f"{found['method']}: {found['state']}, {found['seconds']:,.0f} s of {found['wall_time'] or '-'}; version "
        f"{found['version']}, accuracy {accuracy}, {found['uploads']} uploads, jobs lost: {losses}.\n"
        f"Written by the server {now - found['updated']:,.0f} s ago. Run folder: {found['run']}",
        soft_wrap=True,
    )
    table = Table("device", "online", "samples", "model", "job", "job age", "last seen", "jobs so far")
    for line in found["devices"]:
        since = "-" if line["since"] is None else f"{found['seconds'] - line['since']:,.0f} s"
        seen = "never" if line["seen"] is None else f"{now - line['seen']:,.0f} s ago"
        table.add_row(
            str(line["device"]),
            "yes" if line["online"] else "no",
            str(line["samples"]),
            "-" if line["slot"] is None else str(line["slot"]),
            "-" if line["job"] is None else str(line["job"]),
            since,
            seen,
            str(line["jobs"]),
        )
    console.print(table)
