"""Flower as the network between server and devices."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from flwr.app import Message, RecordDict

from cabafl.deployment import wire
from cabafl.deployment.messages import Answer, FeatureQuery, FeatureReply, Hello, TrainingJob, TrainingReply, Trouble
from cabafl.methods.base import FeatureKind, Job, Weights

UNAVAILABLE = 3  # Flower's error codes of replies: fetched by an earlier server, or expired
MALFORMED = 0
REPLY_OVERHEAD = 100_000  # bytes of a reply besides its weights
UNDELIVERABLE = "undeliverable-"  # prefix of our IDs for messages to nodes unknown to the network


def reply_limit(weights: int) -> int:
    """Bytes of the largest reply accepted: twice the model, so that a wrong layout is reported as such."""
    return 8 * weights + REPLY_OVERHEAD


class Grid(Protocol):
    """The part of Flower's grid, and of `FleetGrid`, that is used here."""

    @property
    def run(self) -> Any: ...

    def get_node_ids(self) -> Iterable[int]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


class FlowerCarrier:
    """See `Carrier`. ``length`` is the number of weights of a model, ``feature_width`` the number of features of each
    kind, ``ttl`` the seconds after which an unanswered message expires."""

    def __init__(
        self, grid: Grid, greeting: str, length: int, feature_width: Callable[[FeatureKind], int], ttl: float
    ) -> None:
        self.grid = grid
        self.greeting = greeting
        self.length = length
        self.feature_width = feature_width
        self.ttl = ttl
        self._kinds: dict[str, str] = {}  # by message ID; messages sent by an earlier process are jobs
        self._asked_width = 0  # number of features of the last query
        self._undeliverable = 0

    @property
    def network(self) -> str:
        """The run ID at the SuperLink."""
        return str(self.grid.run.run_id)

    @property
    def settling(self) -> bool:
        """See `Carrier`; Flower's own grid never is."""
        return bool(getattr(self.grid, "settling", False))

    def nodes(self) -> set[int]:
        """See `Carrier`."""
        return set(self.grid.get_node_ids())

    def greet(self, node: int) -> str:
        """See `Carrier`."""
        return self._push(node, wire.HELLO, wire.encode_greeting(self.greeting))

    def send(self, node: int, job: Job) -> str:
        """See `Carrier`. Slot, version and earlier devices are not sent: a job does not reveal where its model was."""
        return self._push(node, wire.TRAIN, wire.encode_job(TrainingJob(job.number, job.weights, job.objective)))

    def ask(self, node: int, weights: Weights, kind: FeatureKind) -> str:
        """See `Carrier`."""
        self._asked_width = self.feature_width(kind)
        return self._push(node, wire.FEATURES, wire.encode_feature_query(FeatureQuery(weights, kind)))

    def receive(self, messages: Collection[str]) -> list[Answer]:
        """See `Carrier`. A message to a node unknown to the network is answered with `Trouble`."""
        undeliverable = [name for name in messages if name.startswith(UNDELIVERABLE)]
        answers = [Answer(name, Trouble("crash", "the network does not know this device")) for name in undeliverable]
        sent = [name for name in messages if not name.startswith(UNDELIVERABLE)]
        for reply in self.grid.pull_messages(sent) if sent else ():
            name = reply.metadata.reply_to_message_id
            answers.append(Answer(name, self._decode(self._kinds.pop(name, wire.TRAIN), reply)))
        return answers

    def _push(self, node: int, kind: str, content: RecordDict) -> str:
        [name] = self.grid.push_messages([Message(content, dst_node_id=node, message_type=kind, ttl=self.ttl)])
        if not name:
            self._undeliverable += 1
            return f"{UNDELIVERABLE}{self._undeliverable}"
        self._kinds[name] = kind
        return name

    def _decode(self, kind: str, reply: Message) -> Hello | TrainingReply | FeatureReply | Trouble:
        if reply.has_error():
            return _trouble(reply.error.code, reply.error.reason or "no reason given")
        try:
            if kind == wire.HELLO:
                return wire.decode_hello(reply.content)
            if kind == wire.FEATURES:
                return FeatureReply(wire.decode_features(reply.content, self._asked_width))
            return wire.decode_reply(reply.content, self.length)
        except wire.Malformed as error:
            return Trouble("rejected", str(error))


def _trouble(code: int, reason: str) -> Trouble:
    if code == UNAVAILABLE:
        return Trouble("unknown", reason)
    return Trouble("rejected" if code == MALFORMED else "crash", reason)
