"""What uses Flower's internals: which devices the SuperLink admits.

The control calls are not part of Flower's public Python interface, hence the check of the version.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cabafl.deployment.fleet import CA, DEVICES, PUBLIC_KEY, Fleet
from cabafl.errors import UserError

if TYPE_CHECKING:
    from flwr.supercore.control import ControlHttpClient

VERSION = "1.41"
GONE = "unregistered"


class Node(NamedTuple):
    """A device as the SuperLink sees it."""

    id: int
    key: bytes
    status: str  # "registered", "online", "offline" or "unregistered"
    online_until: float  # seconds since the epoch: when it counts as offline without a further sign of life; 0 if never


def require_flower() -> None:
    """The installed Flower is the one this was written for."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        found = "none"
    if not found.startswith(f"{VERSION}."):
        raise UserError(f"flwr = {found}: accepted: {VERSION}.*, by pip install 'cabafl[deploy]'")


def admit(fleet: Fleet) -> dict[int, int]:
    """Exactly the devices of the folder are admitted from now on; returns Flower's node ids by device id.

    Devices already known keep their node id. A device without a folder is shut out at once and for good: Flower takes
    no key twice.
    """
    from flwr.proto.control_pb2 import RegisterNodeRequest, UnregisterNodeRequest

    wanted = {number: _public_key(folder / PUBLIC_KEY) for number, folder in fleet.device_folders().items()}
    with _control(fleet) as control:
        known = {node.key: node for node in _nodes(control)}
        _refuse_returning(wanted, known)
        for node in known.values():
            if node.status != GONE and node.key not in wanted.values():
                control.UnregisterNode(UnregisterNodeRequest(node_id=node.id))
        ids = {number: known[key].id for number, key in wanted.items() if key in known}
        for number in wanted.keys() - ids.keys():
            request = RegisterNodeRequest(public_key=wanted[number], name=f"device {number}")
            ids[number] = control.RegisterNode(request).node_id
    return dict(sorted(ids.items()))


def _refuse_returning(wanted: Mapping[int, bytes], known: Mapping[bytes, Node]) -> None:
    for number, key in wanted.items():
        if key in known and known[key].status == GONE:
            raise UserError(
                f"{DEVICES}/{number:03}: its key was shut out before; accepted: a new key (`cabafl deploy init DIR "
                "--add 1`)"
            )


def nodes(fleet: Fleet) -> list[Node]:
    """The devices the SuperLink has ever admitted."""
    with _control(fleet) as control:
        return _nodes(control)


def _nodes(control: "ControlHttpClient") -> list[Node]:
    from flwr.proto.control_pb2 import ListNodesRequest

    listed = control.ListNodes(ListNodesRequest()).nodes_info
    return [Node(n.node_id, n.public_key, n.status, n.online_until) for n in listed]


@contextmanager
def _control(fleet: Fleet) -> Iterator["ControlHttpClient"]:
    require_flower()
    from flwr.supercore.control import ControlHttpClient

    authority = (fleet.path / CA).read_bytes()
    with ControlHttpClient.from_server_address(fleet.settings.superlink, False, authority, []) as client:
        yield client


def _public_key(path: Path) -> bytes:
    """The form in which Flower keeps it: PEM."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    key = load_ssh_public_key(path.read_bytes())
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
