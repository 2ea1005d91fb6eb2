"""All that needs more of Flower than its public interface, written for one version of it.

`DeviceConnection` is a SuperNode's side of the fleet API, `RunConnection` a ServerApp's side of the runtime API: single
steps only. When to take them is decided in `device` and `grid`.
"""

import io
import json
import logging
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cabafl.deployment.flower.version import require_flower
from cabafl.deployment.server.carrier import Forgotten, Hiccup, Interrupted
from cabafl.errors import UserError

# ruff: noqa: E402 - the version is looked at before anything of Flower is imported

require_flower()

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.message.array import Array
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, SUPERLINK_NODE_ID, ErrorCode, SubStatus
from flwr.common.serde import message_to_proto
from flwr.common.serde_utils import error_from_proto, metadata_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest, UnregisterNodeRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_tree,
    iterate_object_tree,
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
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

Answer = TypeVar("Answer")
Client = TypeVar("Client", bound=ProtobufClient)

RETRY_CAP = 5.0  # seconds between two attempts to reach the SuperLink, at most
STALLED = 15.0  # seconds without a further part, after which the sender of a message counts as dead
PART_LIMIT = 5_000_000  # most bytes of one part of a reply that is no piece of an array
PIECE = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
_OVERLOADED = {429, 502, 503, 504}
_log = logging.getLogger(__name__)


class Halted(Interrupted):
    """The process was asked to end."""


class RunLost(Forgotten):
    """The SuperLink has ended the run or does not know it: a new one must be opened, jobs under way are lost."""


class UploadLost(Exception):
    """A device has begun to send a reply and never ended."""


class Refused(Hiccup):
    """The SuperLink answers with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the SuperLink answers {status}")
        self.status = status


@dataclass(frozen=True)
class Link:
    """Where the SuperLink is: ``host:port``, and the CA that signed its certificate (None: those of the system)."""

    address: str
    root_certificates: Path | None = None
    insecure: bool = False

    def certificates(self) -> bytes | None:
        """The PEM text of the CA."""
        return None if self.root_certificates is None else self.root_certificates.read_bytes()


class Patience:
    """Repeats a call until it is answered: lost connections and a SuperLink that restarts are waited out.

    Handed to Flower's clients in place of their own rule, which interrupts the process when the answer is 401.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.outage_ended: float | None = None  # on the monotonic clock

    def invoke(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        """What Flower's clients call."""
        delay, waited = 0.1, 0.0
        while True:
            try:
                answer = call(*arguments)
            except httpx.TransportError as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise UserError(f"the SuperLink's certificate is not accepted: {error}") from None
                reason = f"{type(error).__name__}: {error}"
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                if status not in _OVERLOADED and not (status == 500 and waited < RETRY_CAP):
                    raise Refused(status) from None
                reason = f"status {status}"
            else:
                if waited > 1.0:
                    self.outage_ended = time.monotonic()
                return answer
            _log.warning("no answer from the SuperLink (%s); next attempt in %.1f s", reason, delay)
            if self.stop.wait(delay):
                raise Halted
            waited += delay
            delay = min(2 * delay, RETRY_CAP)


def _client(kind: type[Client], link: Link, component: str, patience: Patience, *more: Any) -> Client:
    return kind.from_server_address(
        link.address,
        link.insecure,
        link.certificates(),
        [RuntimeVersionHttpInterceptor(component_name=component), *more],
        retry_invoker=patience,  # type: ignore[arg-type]
    )


# Devices


class DeviceConnection:
    """A device at the SuperLink. Without a private key it registers itself, where the SuperLink admits strangers."""

    def __init__(self, link: Link, private_key: Path | None, heartbeat: float, patience: Patience) -> None:
        self.registers_itself = private_key is None
        self.registered = False
        key, public = generate_key_pairs() if private_key is None else _read_key(private_key)
        self.public_key = public_key_to_bytes(public)
        self.heartbeat = heartbeat
        self.patience = patience
        self.node = Node()
        self.client = _client(FleetHttpClient, link, "SuperNode", patience, NodeAuthHttpInterceptor(key, public))

    @property
    def node_id(self) -> int:
        """Zero while not connected."""
        return self.node.node_id

    def connect(self) -> None:
        """Makes the device known and present; refused while the SuperLink takes it for present already."""
        self.node = Node()
        if self.registers_itself:
            self._register()
        request = ActivateNodeRequest(public_key=self.public_key, heartbeat_interval=self.heartbeat)
        self.node = Node(node_id=self.client.ActivateNode(request).node_id)

    def _register(self) -> None:
        try:
            self.client.RegisterNode(RegisterNodeFleetRequest(public_key=self.public_key))
        except Refused:
            if not self.registered:  # else the SuperLink knows this device still
                raise UserError("the SuperLink admits registered keys only, and this device has none") from None
        self.registered = True

    def beat(self) -> None:
        """Tells that the device is alive."""
        if self.node_id:
            request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=self.heartbeat)
            self.client.SendNodeHeartbeat(request)

    def receive(self, poll: float) -> Message | None:
        """The next message for this device, whole; an error reply to it when it cannot be had: a server that was
        killed while it sent leaves half a message behind."""
        response = self.client.PullMessages(PullMessagesRequest(node=self.node))
        if not response.messages_list:
            return None
        metadata, tree = response.messages_list[0].metadata, response.message_object_trees[0]
        pull = self._while_it_flows(make_pull_object_fn_protobuf(self.client.PullObject, self.node, metadata.run_id))
        try:
            parts = pull_objects(_parts(tree), pull, initial_backoff=poll, backoff_cap=poll, max_tries_per_object=None)
        except ObjectPullError as error:
            unread = make_message(metadata_from_proto(metadata), content=RecordDict())
            return Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, str(error)), reply_to=unread)
        self.client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=metadata.run_id, message_object_id=tree.object_id)
        )
        return _message(tree.object_id, parts)

    def _while_it_flows(self, pull: Callable[[str], bytes]) -> Callable[[str], bytes]:
        """Gives a message up when no part of it has come for a while; outages of the SuperLink do not count."""
        last = time.monotonic()

        def pull_part(part_id: str) -> bytes:
            nonlocal last
            try:
                part = pull(part_id)
            except ObjectUnavailableError:
                if time.monotonic() - max(last, self.patience.outage_ended or last) > STALLED:
                    raise ObjectPullError(part_id, "its sender is gone") from None
                raise
            last = time.monotonic()
            return part

        return pull_part

    def send(self, reply: Message, seconds: float) -> bool:
        """Delivers a reply; what a SuperLink that restarted in between does not have is sent again."""
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
            for _ in range(3):
                response = self.client.PushMessages(request)
                push = make_push_object_fn_protobuf(self.client.PushObject, self.node, run_id, response.session_id)
                with suppress(ObjectPushError):
                    push_objects(objects, push, object_ids_to_push=set(response.objects_to_push), keep_objects=True)
                    return True
        return False

    def close(self) -> None:
        """Signs off, if the SuperLink can be reached."""
        with suppress(Refused, Halted, UserError):
            if self.node_id:
                self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node_id))
        self.client.close()


def _read_key(path: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(f"{path} is no private key that can be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is another kind of private key; accepted: elliptic curve, as of `ssh-keygen -t ecdsa`")
    return key, key.public_key()


def _parts(tree: ObjectTree) -> list[str]:
    return list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))


def _message(root: str, parts: dict[str, bytes]) -> Message:
    message = inflate_object_from_contents(root, parts)
    if not isinstance(message, Message):
        raise ValueError("not a message")
    message.metadata.__dict__["_message_id"] = root
    return message


# Server


class Registered(NamedTuple):
    """A device as the SuperLink sees it."""

    id: int
    key: bytes  # PEM
    status: str  # "registered", "online", "offline" or "unregistered"
    online_until: float  # seconds since the epoch: when it counts as offline without a further sign of life; 0 if never


class Control:
    """The control calls that are needed, on the server itself: they ask for no credentials."""

    def __init__(self, link: Link) -> None:
        self._client = _client(ControlHttpClient, link, "flwr CLI", Patience())

    def nodes(self) -> list[Registered]:
        """The devices the SuperLink has ever admitted."""
        listed = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [Registered(n.node_id, n.public_key, n.status, n.online_until) for n in listed]

    def register(self, key: bytes, name: str) -> int:
        """Admits a device; its node id."""
        return int(self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name)).node_id)

    def unregister(self, node: int) -> None:
        """Shuts a device out for good."""
        self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()


@dataclass(frozen=True)
class Ticket:
    """What a restarted server needs to go on with its run. The token is a secret: keep it in a file of mode 0600."""

    run_id: int
    task_id: int
    token: str


def start_run(link: Link, patience: Patience) -> Ticket:
    """Registers a run and claims its server task; tasks of other runs that nobody serves are ended on the way."""
    with _client(ControlHttpClient, link, "flwr CLI", patience) as control:
        run_id = control.StartRun(StartRunRequest(fab=Fab(content=_bundle()))).run_id
    with _client(RuntimeHttpClient, link, "flwr-serverapp", patience) as runtime:
        while True:
            claim = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            if not claim.token:
                raise UserError("the SuperLink runs its own ServerApp; start it with `--isolation process`")
            token = RuntimeTokenHttpInterceptor(claim.token)
            with _client(RuntimeHttpClient, link, "flwr-serverapp", patience, token) as task:
                if claim.task.run_id == run_id:
                    task.PullTaskInput(PullTaskInputRequest())  # the run counts as running from here
                    return Ticket(run_id, claim.task.task_id, claim.token)
                task.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details="nobody serves it"))


def _bundle() -> bytes:
    """The app a run has to name. Nobody loads it: server and devices bring their own code."""
    text = """
[project]
name = "cabafl"
version = "1.0.0"
[tool.flwr.app]
publisher = "cabafl"
[tool.flwr.app.components]
serverapp = "cabafl:server"
clientapp = "cabafl:client"
"""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("pyproject.toml", (2024, 10, 1, 0, 0, 0)), text)
    return file.getvalue()


@dataclass
class Arrival:
    """A reply the SuperLink has handed out; parts of it may still be on their way from the device."""

    envelope: ProtoMessage
    missing: list[str]
    parts: dict[str, bytes]


class RunConnection(HttpGrid):
    """The server process of a run at the SuperLink; one per process."""

    def __init__(self, link: Link, ticket: Ticket, patience: Patience) -> None:
        super().__init__(link.address, link.insecure, link.certificates(), token=ticket.token)
        self._retry_invoker = patience  # type: ignore[assignment]
        self.ticket = ticket
        self.set_run(Run.create_empty(ticket.run_id))
        TaskIdentity.run_id, TaskIdentity.task_id = ticket.run_id, ticket.task_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID

    def beat(self) -> None:
        """Tells that the server is alive; raises `RunLost` when the run has ended."""
        with _run_known():
            if not self._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success:
                raise RunLost("the run has ended")

    def get_node_ids(self) -> list[int]:
        """Devices that are present."""
        with _run_known():
            return list(super().get_node_ids())

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """The ids of the messages, empty for a device the SuperLink does not know."""
        with _run_known():
            try:
                with suppress(ObjectPushError):
                    return list(super().push_messages(messages))
                return list(super().push_messages(messages))  # a SuperLink that restarted in between takes the rest
            except ObjectPushError as error:
                raise Hiccup(f"a message was not taken: {error}") from None

    def arrivals(self, message_ids: list[str]) -> list[Arrival]:
        """New replies to these messages. The SuperLink hands out each only once."""
        with _run_known():
            response = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        pairs = zip(response.messages_list, response.message_object_trees, strict=True)
        return [Arrival(envelope, _parts(tree), {}) for envelope, tree in pairs]

    def part(self, part_id: str) -> bytes | None:
        """A part of a reply, or None: not yet uploaded. Raises `UploadLost` when it will never be."""
        with _run_known():
            response = self._runtime_client.PullObject(
                PullObjectRequest(node=self.node, run_id=self.ticket.run_id, object_id=part_id)
            )
        if not response.object_found:
            raise UploadLost("the upload was given up")
        return response.object_content if response.object_available else None

    def confirm(self, arrival: Arrival) -> None:
        """Lets the SuperLink forget a reply."""
        message_id = arrival.envelope.metadata.message_id
        with suppress(Refused), _run_known():
            self._runtime_client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=self.node, run_id=self.ticket.run_id, message_object_id=message_id)
            )

    def finish(self) -> None:
        """Ends the run: devices drop what they still have of it."""
        with _run_known():
            self._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED))


def error_of(arrival: Arrival) -> Error | None:
    """The error a reply consists of, if it does."""
    return error_from_proto(arrival.envelope.error) if arrival.envelope.HasField("error") else None


def reply(arrival: Arrival, content: RecordDict | Error) -> Message:
    """A reply with the metadata the SuperLink has checked; those inside of it are the device's and can be forged.

    The reason of an error may be a device's words: one short line of it is kept.
    """
    metadata = metadata_from_proto(arrival.envelope.metadata)
    if isinstance(content, Error):
        reason = " ".join((content.reason or "").split())[:200]
        return make_message(metadata, error=Error(content.code, reason))
    return make_message(metadata, content=content)


def content_of(arrival: Arrival, most: int) -> RecordDict:
    """What a reply holds, all parts of it being there; raises anything for a malformed one.

    An array names its pieces by number, each as often as it likes: a small upload could fill the memory. ``most`` is
    the limit for all arrays together, in bytes.
    """
    total = 0
    for part in arrival.parts.values():
        kind, pieces, _ = get_object_head_values_from_object_content(part)
        if kind != "ArrayChunk" and len(part) > PART_LIMIT:
            raise ValueError(f"a part of {len(part)} bytes")
        if kind == "Array":
            numbers = json.loads(get_object_body(part, Array))["arraychunk_ids"]
            total += sum(len(arrival.parts[pieces[number]]) for number in numbers)
    if total > most:
        raise ValueError(f"arrays of {total} bytes, more than {most}")
    return _message(arrival.envelope.metadata.message_id, arrival.parts).content


@contextmanager
def _run_known() -> Iterator[None]:
    try:
        yield
    except Refused as refused:
        if refused.status in (401, 403):
            raise RunLost("the SuperLink has ended this run or does not know it") from None
        raise
