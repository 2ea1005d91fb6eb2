"""A device's connection to the SuperLink: a SuperNode's side of the fleet API."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.common.serde_utils import metadata_from_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    pull_objects,
    push_objects,
)
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from cabafl.deployment.flower.internals.client import Halted, Link, Refused, Retrier, make_client
from cabafl.deployment.flower.internals.objects import assemble_message, part_ids
from cabafl.errors import UserError

STALL_TIMEOUT = 15.0  # seconds without a new part after which the sender of a message counts as dead
PUSH_ATTEMPTS = 3


class DeviceConnection:
    """A device at the SuperLink. Without a private key it registers itself, if the SuperLink allows that."""

    def __init__(self, link: Link, private_key: Path | None, heartbeat: float, retrier: Retrier) -> None:
        self.registers_itself = private_key is None
        self.registered = False
        key, public = generate_key_pairs() if private_key is None else _read_key(private_key)
        self.public_key = public_key_to_bytes(public)
        self.heartbeat = heartbeat
        self.retrier = retrier
        self.node = Node()
        self.client = make_client(FleetHttpClient, link, "SuperNode", retrier, NodeAuthHttpInterceptor(key, public))

    @property
    def node_id(self) -> int:
        """0 while not connected."""
        return self.node.node_id

    def connect(self) -> None:
        """Goes online. Raises `Refused` while the SuperLink considers the device online already."""
        self.node = Node()
        if self.registers_itself:
            self._register()
        request = ActivateNodeRequest(public_key=self.public_key, heartbeat_interval=self.heartbeat)
        self.node = Node(node_id=self.client.ActivateNode(request).node_id)

    def _register(self) -> None:
        try:
            self.client.RegisterNode(RegisterNodeFleetRequest(public_key=self.public_key))
        except Refused:
            if not self.registered:  # else the SuperLink still knows this device
                raise UserError("the SuperLink admits registered keys only, and this device has none") from None
        self.registered = True

    def beat(self) -> None:
        """Sends a heartbeat, once connected."""
        if self.node_id:
            request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=self.heartbeat)
            self.client.SendNodeHeartbeat(request)

    def receive(self, poll: float) -> Message | None:
        """The next complete message, or None. If it cannot be completed, because a server killed while sending left
        half of it behind, returns an error reply to it."""
        response = self.client.PullMessages(PullMessagesRequest(node=self.node))
        if not response.messages_list:
            return None
        metadata, tree = response.messages_list[0].metadata, response.message_object_trees[0]
        pull = self._until_stalled(make_pull_object_fn_protobuf(self.client.PullObject, self.node, metadata.run_id))
        try:
            parts = pull_objects(
                part_ids(tree), pull, initial_backoff=poll, backoff_cap=poll, max_tries_per_object=None
            )
        except ObjectPullError as error:
            unread = make_message(metadata_from_proto(metadata), content=RecordDict())
            return Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, str(error)), reply_to=unread)
        self.client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=metadata.run_id, message_object_id=tree.object_id)
        )
        return assemble_message(tree.object_id, parts)

    def _until_stalled(self, pull: Callable[[str], bytes]) -> Callable[[str], bytes]:
        """Gives a message up after `STALL_TIMEOUT` without a new part; outages of the SuperLink do not count."""
        last = time.monotonic()

        def pull_part(part_id: str) -> bytes:
            nonlocal last
            try:
                part = pull(part_id)
            except ObjectUnavailableError:
                if time.monotonic() - max(last, self.retrier.outage_ended or last) > STALL_TIMEOUT:
                    raise ObjectPullError(part_id, "its sender is gone") from None
                raise
            last = time.monotonic()
            return part

        return pull_part

    def send(self, reply: Message, seconds: float) -> bool:
        """Uploads a reply that took ``seconds`` to compute. Repeats parts lost in a restart of the SuperLink; returns
        False if the upload still fails."""
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            request = PushMessagesRequest(
                node=self.node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[seconds],
            )
            objects = get_all_nested_objects(reply)
            run_id = reply.metadata.run_id
            for _ in range(PUSH_ATTEMPTS):
                response = self.client.PushMessages(request)
                push = make_push_object_fn_protobuf(self.client.PushObject, self.node, run_id, response.session_id)
                with suppress(ObjectPushError):
                    push_objects(objects, push, object_ids_to_push=set(response.objects_to_push), keep_objects=True)
                    return True
        return False

    def close(self) -> None:
        """Goes offline, if the SuperLink can be reached, and closes the connection."""
        with suppress(Refused, Halted, UserError):
            if self.node_id:
                self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node_id))
        self.client.close()


def _read_key(path: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(f"{path}: cannot be read as a private key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path}: not an elliptic curve private key; accepted: as made by `ssh-keygen -t ecdsa`")
    return key, key.public_key()
