"""Flower as the network between server and devices."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from flwr.app import Message, RecordDict

from cabafl.deployment import wire
from cabafl.deployment.messages import Answer, FeatureQuery, FeatureReply, Hello, TrainingJob, TrainingReply, Trouble
from cabafl.methods.base import FeatureKind, Job, Weights

UNAVAILABLE = 3  # error codes of replies, as Flower numbers them: gone with an earlier server, or too late
MALFORMED = 0
MESSAGE = 100_000  # bytes of a reply beside its numbers
NOWHERE = "nowhere-"  # messages to nodes the network does not know


def most_bytes(weights: int) -> int:
    """Bytes of the largest reply accepted: twice the model, which tells a wrong layout from an attack."""
    return 8 * weights + MESSAGE


class Grid(Protocol):
    """What is used of Flower's grid, and of ours."""

    @property
    def run(self) -> Any: ...

    def get_node_ids(self) -> Iterable[int]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


class FlowerCarrier:
    """See `Carrier`. ``length`` is the number of weights of a model, ``widths`` that of features; ``ttl`` seconds is
    how long a job may take."""

    def __init__(
        self, grid: Grid, greeting: str, length: int, widths: Callable[[FeatureKind], int], ttl: float
    ) -> None:
        self.grid = grid
        self.greeting = greeting
        self.length = length
        self.widths = widths
        self.ttl = ttl
        self._kinds: dict[str, str] = {}  # by message; one of an earlier process is a job
        self._width = 0  # of the features asked for last
        self._nowhere = 0

    @property
    def network(self) -> str:
        """See `Carrier`: the run at the SuperLink."""
        return str(self.grid.run.run_id)

    @property
    def settling(self) -> bool:
        """See `Carrier`."""
        return bool(getattr(self.grid, "settling", False))

    def nodes(self) -> set[int]:
        """See `Carrier`."""
        return set(self.grid.get_node_ids())

    def greet(self, node: int) -> str:
        """See `Carrier`."""
        return self._push(node, wire.HELLO, wire.encode_greeting(self.greeting))

    def send(self, node: int, job: Job) -> str:
        """See `Carrier`. Slot, version and earlier devices stay here: a model carries no trace of where it was."""
        return self._push(node, wire.TRAIN, wire.encode_job(TrainingJob(job.number, job.weights, job.objective)))

    def ask(self, node: int, weights: Weights, kind: FeatureKind) -> str:
        """See `Carrier`."""
        self._width = self.widths(kind)
        return self._push(node, wire.FEATURES, wire.encode_feature_query(FeatureQuery(weights, kind)))

    def receive(self, messages: Collection[str]) -> list[Answer]:
        """See `Carrier`."""
        nowhere = [name for name in messages if name.startswith(NOWHERE)]
        answers = [Answer(name, Trouble("crash", "the network does not know this device")) for name in nowhere]
        sent = [name for name in messages if not name.startswith(NOWHERE)]
        for reply in self.grid.pull_messages(sent) if sent else ():
            name = reply.metadata.reply_to_message_id
            answers.append(Answer(name, self._content(self._kinds.pop(name, wire.TRAIN), reply)))
        return answers

    def _push(self, node: int, kind: str, content: RecordDict) -> str:
        [name] = self.grid.push_messages([Message(content, dst_node_id=node, message_type=kind, ttl=self.ttl)])
        if not name:
            self._nowhere += 1
            return f"{NOWHERE}{self._nowhere}"
        self._kinds[name] = kind
        return name

    def _content(self, kind: str, reply: Message) -> Hello | TrainingReply | FeatureReply | Trouble:
        if reply.has_error():
            return _trouble(reply.error.code, reply.error.reason or "no reason given")
        try:
            if kind == wire.HELLO:
                return wire.decode_hello(reply.content)
            if kind == wire.FEATURES:
                return FeatureReply(wire.decode_features(reply.content, self._width))
            return wire.decode_reply(reply.content, self.length)
        except wire.Malformed as error:
            return Trouble("rejected", str(error))


def _trouble(code: int, reason: str) -> Trouble:
    if code == UNAVAILABLE:
        return Trouble("unknown", reason)
    return Trouble("rejected" if code == MALFORMED else "crash", reason)
