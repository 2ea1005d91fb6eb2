"""`cabafl deploy status | stop | export | set`: what an operator does while a run goes on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from cabafl.cli.console import console, print_table
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.deployment.folder.layout import FleetFolder
    from cabafl.deployment.server.operator import CommandKind

Folder = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="Fleet folder on the server, or the folder of `deploy local` or `compare`."),
]
STOP_TIMEOUT = 3600.0  # seconds
NARROW_STATUS = 90  # columns that the table of devices needs


def status(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the state of the run and of each device: the model it holds, when it was last seen, its faults."""
    import json

    from cabafl.deployment.server.operator import STATUS, read_status

    found = read_status(_fleet(folder).state / STATUS)
    if as_json:
        console.print_json(json.dumps(found))
    else:
        _show_status(found)


def stop(
    folder: Folder,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for the jobs in flight.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until the run has ended.")] = True,
) -> None:
    """End the run early, with its model, summary and curve, as if its time were over."""
    from cabafl.deployment.server.operator import STATUS, read_status

    fleet = _running(folder, "stop")
    console.print(_command(fleet, "stop", {"at_once": now}), soft_wrap=True)
    if not wait:
        return
    import time

    from cabafl.deployment.server.operator import LOCK, is_running

    run = read_status(fleet.state / STATUS)["run"]
    deadline = time.monotonic() + STOP_TIMEOUT
    while is_running(fleet.state / LOCK) and read_status(fleet.state / STATUS)["run"] == run:
        if time.monotonic() > deadline:
            raise UserError(
                f"the run has not ended after {STOP_TIMEOUT:g} s; `cabafl deploy stop {folder} --now` ends it"
            )
        time.sleep(0.2)
    found = read_status(fleet.state / STATUS)
    state = found["state"] if found["run"] == run else "complete"  # a comparison has gone on to its next run
    console.print(f"{state}: {run}", soft_wrap=True)


def export(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="File for the model; must not exist.")],
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="onnx, torchscript or safetensors: checked and with a model card, as `cabafl export` does it; "
            "default: the bare weights in safetensors format.",
        ),
    ] = None,
) -> None:
    """Write the current global model of a run that is going on, or of one that was interrupted."""
    from cabafl.deployment.server.operator import LOCK, is_running

    fleet, out = _fleet(folder), out.resolve()
    if out.exists():
        raise UserError(f"--out = {out}: exists; accepted: a new file")
    if not out.parent.is_dir():
        raise UserError(f"--out = {out}: its folder does not exist")
    if form is not None:
        _export_as(form, fleet, out)
        return
    if is_running(fleet.state / LOCK):
        console.print(f"{_command(fleet, 'export', {}, out)}: {out}", soft_wrap=True)
        return
    from cabafl.deployment.server.export import export_stopped
    from cabafl.deployment.server.operator import STATUS, read_status

    console.print(export_stopped(Path(read_status(fleet.state / STATUS)["run"]), out), soft_wrap=True)


def _export_as(form: str, fleet: "FleetFolder", out: Path) -> None:
    """In the format of another program; from the server's memory, if it runs."""
    from tempfile import TemporaryDirectory

    from cabafl.cli.export import show_export
    from cabafl.deployment.server.operator import LOCK, STATUS, is_running, read_status
    from cabafl.exporting.formats import check_format

    check_format(form)
    from cabafl.exporting.model import export_model, export_weights

    run = Path(read_status(fleet.state / STATUS)["run"])
    if not is_running(fleet.state / LOCK):
        show_export(export_model(run, out, form))  # type: ignore[arg-type]  # checked above
        return
    with TemporaryDirectory() as place:
        weights = Path(place) / "model.safetensors"
        console.print(_command(fleet, "export", {}, weights), soft_wrap=True)
        show_export(export_weights(weights, run, out, form))  # type: ignore[arg-type]  # checked above


def change(
    folder: Folder,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="E.g. run.wall_time=7200.")],
) -> None:
    """Change settings of the run while it goes on; each change is in its journal."""
    console.print(_command(_running(folder, "set"), "set", {"settings": settings}), soft_wrap=True)


def _fleet(folder: Path) -> "FleetFolder":
    """A fleet folder, also that inside a folder of `deploy local` or `compare`."""
    from cabafl.deployment.folder.layout import SETTINGS, FleetFolder

    inner = folder / "fleet"
    return FleetFolder.load(inner if not (folder / SETTINGS).exists() and inner.is_dir() else folder)


def _running(folder: Path, what: str) -> "FleetFolder":
    from cabafl.deployment.server.operator import LOCK, is_running

    fleet = _fleet(folder)
    if not is_running(fleet.state / LOCK):
        raise UserError(
            f"{what}: no server runs on this fleet; accepted: while `cabafl deploy server`, `local` or `compare` runs"
        )
    return fleet


def _command(fleet: "FleetFolder", kind: "CommandKind", values: dict[str, Any], out: Path | None = None) -> str:
    from cabafl.deployment.server.operator import COMMANDS, send_command

    return send_command(fleet.state / COMMANDS, kind, values, out)


def _show_status(found: dict[str, Any]) -> None:
    import time

    from cabafl.recording.scale import metric_info

    now = time.time()
    metric = metric_info(found.get("metric"))  # a server of an earlier version has written neither
    value = "-" if found.get("value") is None else f"{metric.text(found['value'])}{metric.unit}"
    losses = ", ".join(f"{n} {reason}" for reason, n in found["losses"].items()) or "none"
    console.print(
        f"{found['method']}: {found['state']}, {found['seconds']:,.0f} s of {found['wall_time'] or '-'}; version "
        f"{found['version']}, {metric.title} {value}, {found['uploads']} uploads, {found['in_flight']} jobs in flight, "
        f"jobs lost: {losses}, inputs quarantined: {found['quarantined']}; {found['online']} devices online.\n"
        f"Written by the server {now - found['updated']:,.0f} s ago. Run folder: {found['run']}",
        soft_wrap=True,
    )
    table = Table("device", "online", "samples", "model", "job", "job age", "last seen", "jobs", "faults", "clipped")
    for line in found["devices"]:
        since = "-" if line["since"] is None else f"{found['seconds'] - line['since']:,.0f} s"
        seen = "never" if line["seen"] is None else f"{now - line['seen']:,.0f} s ago"
        table.add_row(
            str(line["device"]),
            "yes" if line["online"] else line["declined"] or "no",
            str(line["samples"]),
            "-" if line["slot"] is None else str(line["slot"]),
            "-" if line["job"] is None else str(line["job"]),
            since,
            seen,
            str(line["jobs"]),
            str(line["faults"]),
            str(line["clipped"]),
        )
    print_table(table, NARROW_STATUS)
