"""Flower's grid as the network of a run: see `server.carrier.Carrier`. The grid is polled."""

import time
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from flwr.app import ConfigRecord, Message, RecordDict

from cabafl.deployment import wire
from cabafl.deployment.log import Log
from cabafl.deployment.messages import Described, Gone, Here, JobFailed, News, Nonsense, Ready, Trained
from cabafl.deployment.server.carrier import Delivery, RunOnFleet
from cabafl.engine.orders import told
from cabafl.methods.base import FeatureKind, Job, Weights

TRAIN, FEATURES, HELLO = "train", "query.features", "query.hello"  # message types
PIECE = 4 << 20  # bytes per value of a record
POLL_INTERVAL = 0.2  # seconds
NODE_INTERVAL = 2.0  # seconds between two looks at which nodes are online
_RECORD = "message"


class Grid(Protocol):
    """The part of Flower's grid that is used here."""

    def get_node_ids(self) -> Iterable[int]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


class Sent(NamedTuple):
    """A message without an answer yet; ``number`` is that of its job or query."""

    kind: str
    device: int
    number: int


def to_record(packets: Sequence[bytes]) -> RecordDict:
    """The packets of one message as the content of a Flower message."""
    return RecordDict({_RECORD: ConfigRecord({str(number): packet for number, packet in enumerate(packets)})})


def from_record(record: RecordDict, limit: int, lengths: Mapping[str, int]) -> wire.WireRecord:
    """The reverse of `to_record`, strict: raises `wire.Malformed`."""
    values = record.get(_RECORD)
    if set(record) != {_RECORD} or not isinstance(values, ConfigRecord):
        raise wire.Malformed("not a record of packets")
    assembler, content = wire.Assembler(limit), None
    for number in range(len(values)):
        packet = values.get(str(number))
        if not isinstance(packet, bytes):
            raise wire.Malformed(f"no packet {number}")
        content = assembler.add(packet)
    if content is None:
        raise wire.Malformed("packets are missing")
    return wire.decode(content, lengths)


class FlowerCarrier:
    """One run on Flower's grid with a fixed set of nodes. Flower cannot cancel or recall a message; a job that is lost
    comes back as an error, or expires. A device cannot hold a result: it uploads it, and it is held here."""

    connections = 1

    def __init__(self, grid: Grid, nodes: Mapping[int, int], run: RunOnFleet, log: Log) -> None:
        self.grid = grid
        self.nodes = nodes  # by device
        self.run = run
        self.log = log
        self._online: set[int] = set()  # devices
        self._looked = 0.0
        self._sent: dict[str, Sent] = {}  # by message ID
        self._width = 0
        self._to_hold: set[int] = set()  # jobs
        self._held: dict[int, Trained] = {}  # by job
        self._fetched: list[News] = []
        self._woken = False

    @property
    def steady(self) -> bool:
        """See `Carrier`: every node that is online has answered the greeting."""
        return self._looked > 0 and all(sent.kind != HELLO for sent in self._sent.values())

    def removed(self) -> frozenset[int]:
        """Flower decides itself whom it admits."""
        return frozenset()

    def receive(self, timeout: float) -> list[Delivery]:
        """See `Carrier`."""
        deadline = time.monotonic() + timeout
        while True:
            found = [*self._fetched, *self._presence(), *self._answers()]
            self._fetched = []
            if found or self._woken or time.monotonic() >= deadline:
                self._woken = False
                return [Delivery(news) for news in found]
            time.sleep(min(POLL_INTERVAL, max(0.0, deadline - time.monotonic())))

    def confirm(self, deliveries: Sequence[Delivery]) -> None:
        """Flower deletes a message when it is pulled."""

    def _presence(self) -> list[News]:
        if time.monotonic() - self._looked < NODE_INTERVAL:
            return []
        self._looked = time.monotonic()
        here = set(self.grid.get_node_ids())
        online = {device for device, node in self.nodes.items() if node in here}
        for device in sorted(online - self._online):
            self._push(HELLO, device, 0, wire.encode("greeting", self._greeting()))
        gone: list[News] = [Gone(device) for device in sorted(self._online - online)]
        self._online = online
        return gone

    def _greeting(self) -> dict[str, wire.Value]:
        return {"run": self.run.id, "greeting": self.run.greeting}

    def _answers(self) -> list[News]:
        news = []
        for reply in self.grid.pull_messages(list(self._sent)) if self._sent else ():
            sent = self._sent.pop(reply.metadata.reply_to_message_id, None)
            if sent is not None:
                news.append(self._read(sent, reply))
        return news

    def _read(self, sent: Sent, reply: Message) -> News:
        if reply.has_error():
            return self._failed(sent, f"Flower error {reply.error.code}", lost=True)
        lengths = {"here": 0, "trained": self.run.weights, "failed": 0, "features": self._width, "refused": 0}
        try:
            record = from_record(reply.content, wire.message_limit(self.run.weights), lengths)
        except wire.Malformed as error:
            return self._failed(sent, str(error))
        expected = {HELLO: "here", TRAIN: "trained", FEATURES: "features"}[sent.kind]
        if record.problem or record.kind != expected:
            return self._failed(sent, record.problem or f"answers with {record.kind}")
        if sent.kind == HELLO:
            return Here(sent.device, record.text("process"), record.count("samples"))
        if sent.kind == FEATURES:
            return Described(sent.device, sent.number, record.vector)
        trained = Trained(sent.device, sent.number, wire.reply_of(record))
        if sent.number not in self._to_hold:
            return trained
        self._held[sent.number] = trained
        return Ready(sent.device, sent.number, trained.reply.seconds, trained.reply.joules)

    def _failed(self, sent: Sent, text: str, lost: bool = False) -> News:
        if sent.kind == TRAIN:
            return JobFailed(sent.device, sent.number, "crash" if lost else "rejected", text)
        if sent.kind == FEATURES:
            return Described(sent.device, sent.number, None, text)
        self._online.discard(sent.device)  # greets it again
        return Nonsense(sent.device, text)

    def expect(self, jobs: Sequence[Job]) -> None:
        """A new process is a new run for Flower: answers to an earlier one are lost, so the jobs are sent again."""
        self.send(jobs)

    def send(self, jobs: Sequence[Job]) -> None:
        """See `Carrier`."""
        for job in jobs:
            values = wire.job_values(self.run.id, job.number, told(job), "", job.correction is not None)
            if job.objective.hold:
                self._to_hold.add(job.number)
            vector = wire.job_vector(job.weights, job.correction)
            self._push(TRAIN, job.device, job.number, wire.encode("job", values, vector, PIECE))

    def ask(self, query: int, weights: Weights, kind: FeatureKind, seconds: float) -> None:
        """See `Carrier`. One message per device: Flower has no other."""
        self._width = self.run.feature_width(kind)
        packets = wire.encode("query", {"run": self.run.id, "query": query, "features": kind}, weights, PIECE)
        for device in sorted(self._online):
            self._push(FEATURES, device, query, packets)

    def _push(self, kind: str, device: int, number: int, packets: Sequence[bytes]) -> None:
        content = to_record(packets)
        message = Message(content, dst_node_id=self.nodes[device], message_type=kind, ttl=self.run.ttl)
        for name in self.grid.push_messages([message]):
            if name:
                self._sent[name] = Sent(kind, device, number)

    def recall(self, job: Job) -> None:
        """Flower delivers a message once or reports an error."""

    def cancel(self, device: int, job: int) -> None:
        """Flower has no way to do this: the late answer is ignored."""
        self._held.pop(job, None)

    def finish(self, device: int, job: int) -> None:
        """Flower has no way to do this: the device does all epochs."""

    def fetch(self, device: int, job: int) -> None:
        """See `Carrier`."""
        trained = self._held.pop(job, None)
        if trained is not None:
            self._fetched.append(trained)

    def tidy(self, jobs: Container[int]) -> None:
        """See `Carrier`."""
        self._to_hold = {job for job in self._to_hold if job in jobs}
        self._held = {job: trained for job, trained in self._held.items() if job in jobs}

    def wake(self) -> None:
        """See `Carrier`."""
        self._woken = True

    def close(self, finished: bool) -> None:
        """Flower closes its grid itself."""
