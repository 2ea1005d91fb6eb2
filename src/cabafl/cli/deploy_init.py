"""`cabafl deploy init`"""

import ipaddress
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cabafl.cli.console import console
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.deployment.folder.membership import MembershipChange

SETTINGS = ("name", "ip", "port", "listen", "packet_limit", "queue_limit", "home", "broker")

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="Fleet folder: new or empty; existing with --add, --remove, --renew.")
]
Names = Annotated[list[str] | None, typer.Option(help="DNS name of the broker; may be repeated.")]
Ips = Annotated[list[str] | None, typer.Option(help="IP address of the broker; may be repeated.")]
Packet = Annotated[
    int | None, typer.Option(help="Largest MQTT packet in MiB; larger messages go in pieces; default: 64.")
]
Queue = Annotated[int | None, typer.Option(help="MiB the broker keeps for a client that is away; default: 2048.")]
Home = Annotated[
    str | None, typer.Option(help="Install path of fleet and environment on the machines; default: /opt/cabafl.")
]
Broker = Annotated[str | None, typer.Option(help="HOST:PORT of a broker that does not run beside the server.")]
Remove = Annotated[
    str | None, typer.Option(metavar="ID[,ID]", help="Devices to shut out of an existing fleet, for good.")
]
Renew = Annotated[
    bool, typer.Option("--renew", help="New certificates for an existing fleet, and the settings given here.")
]


def init(
    folder: Folder,
    devices: Annotated[int | None, typer.Option(help="Number of devices; default: 10.")] = None,
    name: Names = None,
    ip: Ips = None,
    port: Annotated[int | None, typer.Option(help="Port of the broker; default: 8883.")] = None,
    listen: Annotated[str | None, typer.Option(help="Address the broker listens on; default: 0.0.0.0.")] = None,
    packet_limit: Packet = None,
    queue_limit: Queue = None,
    home: Home = None,
    broker: Broker = None,
    add: Annotated[int | None, typer.Option(help="Number of devices to add to an existing fleet.")] = None,
    remove: Remove = None,
    renew: Renew = False,
) -> None:
    """Create certificates, keys, broker configuration, systemd units and scripts for a fleet, or change a fleet."""
    values = (name, ip, port, listen, packet_limit, queue_limit, home, broker)
    given = {key: value for key, value in zip(SETTINGS, values, strict=True) if value not in (None, [])}
    _check_combination({"--add": add, "--remove": remove, "--renew": renew or None}, given, devices)
    _require_cryptography()
    if add is not None:
        _add(folder, add)
    elif remove is not None:
        _remove(folder, remove)
    elif renew:
        _renew(folder, given)
    else:
        _make(folder, given, 10 if devices is None else devices)


def _check_combination(changes: Mapping[str, object], given: Mapping[str, object], devices: int | None) -> None:
    chosen = {option: value for option, value in changes.items() if value is not None}
    if not chosen or (len(chosen) == 1 and devices is None and (not given or "--renew" in chosen)):
        return
    accepted = "the options of init but --devices" if chosen.keys() == {"--renew"} else "no other option"
    option, value = next(iter(chosen.items()))
    raise UserError(f"{option} = {value}: cannot be combined; accepted: {accepted}")


def _require_cryptography() -> None:
    if find_spec("cryptography") is None:
        raise UserError("cryptography: not installed; accepted: pip install 'cabafl[deploy]'")


def _make(folder: Path, given: dict[str, Any], devices: int) -> None:
    from cabafl.deployment.folder.layout import FleetSettings
    from cabafl.deployment.folder.provision import make_fleet
    from cabafl.deployment.folder.wheel import write_installer
    from cabafl.validation import validated

    if not given.keys() & {"name", "ip"} and sys.stdin.isatty():
        given |= _ask()
    fleet = make_fleet(folder, validated(FleetSettings, given), devices)
    write_installer(fleet)
    _say(f"Fleet of {devices} devices, broker {fleet.settings.address}: {folder}\nNext: {folder / 'README.md'}")


def _add(folder: Path, count: int) -> None:
    from cabafl.deployment.folder.layout import FleetFolder
    from cabafl.deployment.folder.provision import add_devices

    for device in add_devices(FleetFolder.load(folder), count):
        _say(f"Device {device.id}: {device.folder}")
    _say("On the server, create the same folders (without device.key); a running server notices them by itself.")


def _remove(folder: Path, text: str) -> None:
    from cabafl.deployment.folder.layout import FleetFolder
    from cabafl.deployment.folder.membership import remove_devices
    from cabafl.deployment.server.operator import record_removal

    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"--remove = {text!r}: accepted: numbers of devices, such as 3 or 3,7") from None
    fleet = FleetFolder.load(folder)
    change = remove_devices(fleet, numbers)
    record_removal(fleet.state, numbers)
    _say(f"Removed: {', '.join(f'device {number}' for number in numbers)}.")
    if not change.listed:
        _say("Not on the revocation list: ca.key is not here. Use --remove also where it is, and copy crl.pem here.")
    _say_reload(change, "acl and crl.pem")


def _renew(folder: Path, given: dict[str, Any]) -> None:
    from cabafl.deployment.folder.layout import FleetFolder
    from cabafl.deployment.folder.membership import renew
    from cabafl.deployment.folder.wheel import write_installer

    fleet, change = renew(FleetFolder.load(folder), given)
    write_installer(fleet)
    _say(f"New certificates for broker {fleet.settings.address}, server and {len(fleet.device_ids())} devices.")
    _say("Copy each devices/NNN to its device (install-all.sh) and restart cabafl-server and cabafl-device.")
    _say_reload(change, "fleet.toml, mosquitto.conf, acl, crl.pem, broker.crt and server.crt")
    if given.keys() & {"port", "listen"}:
        _say("Another port or address needs a restart of the broker instead of a reload; sessions survive it.")


def _say_reload(change: "MembershipChange", files: str) -> None:
    if change.reloaded:
        _say("The broker that runs from this folder has been told to read its files again.")
    else:
        _say(
            f"No broker runs from this folder. Copy {files} to the fleet folder of the one that does, then, there: "
            "systemctl reload cabafl-broker"
        )


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False)


def _ask() -> dict[str, list[str]]:
    words = typer.prompt("DNS names and IP addresses at which devices reach the broker").replace(",", " ").split()
    answer: dict[str, list[str]] = {}
    for word in words:
        try:
            ipaddress.ip_address(word)
        except ValueError:
            answer.setdefault("name", []).append(word)
        else:
            answer.setdefault("ip", []).append(word)
    return answer
