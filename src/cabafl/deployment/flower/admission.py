"""Which devices the SuperLink admits: those that have a folder."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from cabafl.deployment.flower.internals import Control, Link, Registered
from cabafl.deployment.folder.layout import CA, DEVICES, PUBLIC_KEY, FleetFolder
from cabafl.errors import UserError

UNREGISTERED = "unregistered"  # status of a banned device


def server_link(fleet: FleetFolder) -> Link:
    """The SuperLink as the server reaches it: on loopback, without the proxy."""
    return Link(fleet.settings.superlink, fleet.path / CA)


def admit(fleet: FleetFolder) -> dict[int, int]:
    """Admits exactly the devices of the folder; returns Flower's node IDs by device ID.

    Known devices keep their node ID. A device whose folder is gone is banned at once and permanently: Flower never
    accepts a banned key again.
    """
    wanted = {number: public_key(folder / PUBLIC_KEY) for number, folder in fleet.device_folders().items()}
    with closing(Control(server_link(fleet))) as control:
        known = {node.key: node for node in control.nodes()}
        _refuse_banned(wanted, known)
        for node in known.values():
            if node.status != UNREGISTERED and node.key not in wanted.values():
                control.unregister(node.id)
        ids = {number: known[key].id for number, key in wanted.items() if key in known}
        for number in wanted.keys() - ids.keys():
            ids[number] = control.register(wanted[number], f"device {number}")
    return dict(sorted(ids.items()))


def _refuse_banned(wanted: Mapping[int, bytes], known: Mapping[bytes, Registered]) -> None:
    for number, key in wanted.items():
        if key in known and known[key].status == UNREGISTERED:
            raise UserError(
                f"{DEVICES}/{number:03}: its key was banned before; accepted: a new key (`cabafl deploy init DIR "
                "--add 1`)"
            )


def registered(fleet: FleetFolder) -> list[Registered]:
    """All devices the SuperLink has ever admitted, including banned ones."""
    with closing(Control(server_link(fleet))) as control:
        return control.nodes()


def public_key(path: Path) -> bytes:
    """Reads an OpenSSH public key; returns it as PEM, the form Flower stores."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a public key: {error}") from None
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
