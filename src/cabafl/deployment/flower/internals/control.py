"""The control API: which devices the SuperLink admits. It asks for no credentials and is used on the server only."""

from typing import NamedTuple

from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.supercore.control.control_http_client import ControlHttpClient

from cabafl.deployment.flower.internals.client import Link, Retrier, make_client

CONTROL_CLIENT = "flwr CLI"  # component name of a control client


class Registered(NamedTuple):
    """A device as listed by the SuperLink."""

    id: int
    key: bytes  # PEM
    status: str  # "registered", "online", "offline" or "unregistered"
    online_until: float  # seconds since the epoch when it turns offline unless a heartbeat arrives; 0 if never online


class Control:
    """Lists, admits and bans devices."""

    def __init__(self, link: Link) -> None:
        self._client = make_client(ControlHttpClient, link, CONTROL_CLIENT, Retrier())

    def nodes(self) -> list[Registered]:
        """All devices ever admitted, including banned ones."""
        listed = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [Registered(n.node_id, n.public_key, n.status, n.online_until) for n in listed]

    def register(self, key: bytes, name: str) -> int:
        """Admits a device; returns its node ID."""
        return int(self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name)).node_id)

    def unregister(self, node: int) -> None:
        """Bans a device permanently: Flower never accepts the same key again."""
        self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()
