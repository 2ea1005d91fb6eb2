"""Which devices the SuperLink admits: those that have a folder."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from cabafl.deployment.flower.internals import Control, Link, Registered
from cabafl.deployment.folder.layout import CA, DEVICES, PUBLIC_KEY, FleetFolder
from cabafl.errors import UserError

GONE = "unregistered"


def server_link(fleet: FleetFolder) -> Link:
    """The SuperLink as the server reaches it: on loopback, behind the proxy."""
    return Link(fleet.settings.superlink, fleet.path / CA)


def admit(fleet: FleetFolder) -> dict[int, int]:
    """Exactly the devices of the folder are admitted from now on; returns Flower's node ids by device id.

    Devices already known keep their node id. A device without a folder is shut out at once and for good: Flower takes
    no key twice.
    """
    wanted = {number: public_key(folder / PUBLIC_KEY) for number, folder in fleet.device_folders().items()}
    with closing(Control(server_link(fleet))) as control:
        known = {node.key: node for node in control.nodes()}
        _refuse_returning(wanted, known)
        for node in known.values():
            if node.status != GONE and node.key not in wanted.values():
                control.unregister(node.id)
        ids = {number: known[key].id for number, key in wanted.items() if key in known}
        for number in wanted.keys() - ids.keys():
            ids[number] = control.register(wanted[number], f"device {number}")
    return dict(sorted(ids.items()))


def _refuse_returning(wanted: Mapping[int, bytes], known: Mapping[bytes, Registered]) -> None:
    for number, key in wanted.items():
        if key in known and known[key].status == GONE:
            raise UserError(
                f"{DEVICES}/{number:03}: its key was shut out before; accepted: a new key (`cabafl deploy init DIR "
                "--add 1`)"
            )


def registered(fleet: FleetFolder) -> list[Registered]:
    """The devices the SuperLink has ever admitted."""
    with closing(Control(server_link(fleet))) as control:
        return control.nodes()


def public_key(path: Path) -> bytes:
    """The form in which Flower keeps it: PEM."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no public key that can be read: {error}") from None
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
