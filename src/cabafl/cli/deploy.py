"""`cabafl deploy init`"""

import ipaddress
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cabafl.cli.console import console
from cabafl.errors import UserError

app = typer.Typer(help="Real devices, through Flower (pip install 'cabafl\\[deploy]').", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Real devices, through Flower (pip install 'cabafl\\[deploy]')."""


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The fleet folder: new or empty.")],
    devices: Annotated[int | None, typer.Option(help="Number of devices; default: 10.")] = None,
    name: Annotated[list[str] | None, typer.Option(help="DNS name of the server; may be repeated.")] = None,
    ip: Annotated[list[str] | None, typer.Option(help="IP address of the server; may be repeated.")] = None,
    port: Annotated[int | None, typer.Option(help="Public port; default: 9092.")] = None,
    listen: Annotated[str | None, typer.Option(help="Address of the public port; default: 0.0.0.0.")] = None,
    superlink_port: Annotated[int | None, typer.Option(help="SuperLink's port on loopback; default: 9093.")] = None,
    upload_limit: Annotated[
        int | None, typer.Option(help="Largest request in MiB; Flower sends arrays in pieces of 5; default: 8.")
    ] = None,
    home: Annotated[
        str | None, typer.Option(help="Where fleet and environment will be installed; default: /opt/cabafl.")
    ] = None,
    add: Annotated[int | None, typer.Option(help="Add so many devices to an existing fleet.")] = None,
) -> None:
    """Make certificates, keys, configuration and units for a fleet of devices."""
    given: dict[str, Any] = {
        "name": name,
        "ip": ip,
        "port": port,
        "listen": listen,
        "superlink_port": superlink_port,
        "upload_limit": upload_limit,
        "home": home,
    }
    given = {key: value for key, value in given.items() if value not in (None, [])}
    if add is not None:
        if given or devices is not None:
            raise UserError(f"--add = {add}: goes with no other option; the fleet keeps its settings")
        _add(folder, add)
    else:
        _make(folder, given, 10 if devices is None else devices)


def _make(folder: Path, given: dict[str, Any], devices: int) -> None:
    from cabafl.deployment.flower import require_flower

    require_flower()
    from cabafl.deployment.fleet import FleetSettings
    from cabafl.deployment.provision import make_fleet
    from cabafl.validation import validated

    if not given.keys() & {"name", "ip"} and sys.stdin.isatty():
        given |= _ask()
    fleet = make_fleet(folder, validated(FleetSettings, given), devices)
    console.print(
        f"Fleet of {devices} devices, server {fleet.settings.address}: {folder}\nNext: {folder / 'README.md'}",
        markup=False,
        soft_wrap=True,
    )


def _add(folder: Path, count: int) -> None:
    from cabafl.deployment.flower import require_flower

    require_flower()
    from cabafl.deployment.fleet import Fleet
    from cabafl.deployment.provision import add_devices

    for device in add_devices(Fleet.load(folder), count):
        console.print(f"Device {device.id}: {device.folder}", markup=False, soft_wrap=True)


def _ask() -> dict[str, list[str]]:
    words = typer.prompt("Names and IP addresses under which devices reach the server").replace(",", " ").split()
    answer: dict[str, list[str]] = {}
    for word in words:
        try:
            ipaddress.ip_address(word)
        except ValueError:
            answer.setdefault("name", []).append(word)
        else:
            answer.setdefault("ip", []).append(word)
    return answer
