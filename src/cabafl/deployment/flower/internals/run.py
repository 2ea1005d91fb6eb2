"""The server's connection to the SuperLink: a ServerApp's side of the runtime API."""

import io
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID, SubStatus
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from cabafl.deployment.flower.internals.client import Link, Refused, Retrier, RunLost, make_client
from cabafl.deployment.flower.internals.control import CONTROL_CLIENT
from cabafl.deployment.flower.internals.objects import part_ids
from cabafl.deployment.flower.internals.replies import Arrival, UploadLost
from cabafl.deployment.server.carrier import TemporaryFailure
from cabafl.errors import UserError

_SERVER_CLIENT = "flwr-serverapp"  # component name of a runtime client
# A run must name an app. It is never loaded: server and devices bring their own code.
_APP = """
[project]
name = "cabafl"
version = "1.0.0"
[tool.flwr.app]
publisher = "cabafl"
[tool.flwr.app.components]
serverapp = "cabafl:server"
clientapp = "cabafl:client"
"""


@dataclass(frozen=True)
class Ticket:
    """What a restarted server needs to continue its run. The token is a secret: store it in a file of mode 0600."""

    run_id: int
    task_id: int
    token: str


def start_run(link: Link, retrier: Retrier) -> Ticket:
    """Starts a run and claims its server task. Ends unclaimed server tasks of other runs that it meets."""
    with make_client(ControlHttpClient, link, CONTROL_CLIENT, retrier) as control:
        run_id = control.StartRun(StartRunRequest(fab=Fab(content=_app_bundle()))).run_id
    with make_client(RuntimeHttpClient, link, _SERVER_CLIENT, retrier) as runtime:
        while True:
            claim = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            if not claim.token:
                raise UserError("the SuperLink runs its own ServerApp; accepted: one started with --isolation process")
            token = RuntimeTokenHttpInterceptor(claim.token)
            with make_client(RuntimeHttpClient, link, _SERVER_CLIENT, retrier, token) as task:
                if claim.task.run_id == run_id:
                    task.PullTaskInput(PullTaskInputRequest())  # the SuperLink marks the run as running
                    return Ticket(run_id, claim.task.task_id, claim.token)
                task.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details="nobody serves it"))


def _app_bundle() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("pyproject.toml", (2024, 10, 1, 0, 0, 0)), _APP)
    return file.getvalue()


class RunConnection(HttpGrid):
    """The server of a run at the SuperLink. One per process, because Flower keeps the run's identity in globals."""

    def __init__(self, link: Link, ticket: Ticket, retrier: Retrier) -> None:
        super().__init__(link.address, link.insecure, link.certificates(), token=ticket.token)
        self._retry_invoker = retrier  # type: ignore[assignment]
        self.ticket = ticket
        self.set_run(Run.create_empty(ticket.run_id))
        TaskIdentity.run_id, TaskIdentity.task_id = ticket.run_id, ticket.task_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID

    def beat(self) -> None:
        """Sends a heartbeat; raises `RunLost` if the run has ended."""
        with _refusal_means_run_lost():
            if not self._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success:
                raise RunLost("the run has ended")

    def get_node_ids(self) -> list[int]:
        """Devices that are online."""
        with _refusal_means_run_lost():
            return list(super().get_node_ids())

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Sends messages; returns their IDs, an empty one for a device unknown to the SuperLink."""
        with _refusal_means_run_lost():
            try:
                with suppress(ObjectPushError):
                    return list(super().push_messages(messages))
                return list(super().push_messages(messages))  # again, in case the SuperLink restarted in between
            except ObjectPushError as error:
                raise TemporaryFailure(f"a message was not taken: {error}") from None

    def arrivals(self, message_ids: list[str]) -> list[Arrival]:
        """New replies to these messages. The SuperLink hands out each reply only once."""
        with _refusal_means_run_lost():
            response = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        pairs = zip(response.messages_list, response.message_object_trees, strict=True)
        return [Arrival(envelope, part_ids(tree), {}) for envelope, tree in pairs]

    def part(self, part_id: str) -> bytes | None:
        """A part of a reply, or None if it is not uploaded yet. Raises `UploadLost` if it never will be."""
        with _refusal_means_run_lost():
            response = self._runtime_client.PullObject(
                PullObjectRequest(node=self.node, run_id=self.ticket.run_id, object_id=part_id)
            )
        if not response.object_found:
            raise UploadLost("the upload was given up")
        return response.object_content if response.object_available else None

    def confirm(self, arrival: Arrival) -> None:
        """Lets the SuperLink delete a reply."""
        message_id = arrival.envelope.metadata.message_id
        with suppress(Refused), _refusal_means_run_lost():
            self._runtime_client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=self.node, run_id=self.ticket.run_id, message_object_id=message_id)
            )

    def finish(self) -> None:
        """Ends the run: devices drop its messages."""
        with _refusal_means_run_lost():
            self._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED))


@contextmanager
def _refusal_means_run_lost() -> Iterator[None]:
    """Turns status 401 and 403 into `RunLost`."""
    try:
        yield
    except Refused as refused:
        if refused.status in (401, 403):
            raise RunLost("the SuperLink has ended this run or does not know it") from None
        raise
