"""The server's side of the broker: see `server.carrier.Carrier`."""

import queue
import secrets
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

from cabafl.deployment import wire
from cabafl.deployment.log import Log
from cabafl.deployment.messages import Declined, Described, Gone, Here, JobFailed, News, Nonsense, Ready, Trained
from cabafl.deployment.mqtt.flood import MUTE_TIME, FloodGuard
from cabafl.deployment.mqtt.link import (
    EVERY_HERE,
    EVERY_UP,
    MODEL_TOPICS,
    QUERY_TOPIC,
    RUN_TOPIC,
    Account,
    Connected,
    Disconnected,
    Incoming,
    Link,
    Packet,
    down_topic,
    here_topic,
    piece_size,
    sender_of,
    up_topic,
)
from cabafl.deployment.server.carrier import Delivery, RunOnFleet
from cabafl.engine.orders import told
from cabafl.errors import RunStopped
from cabafl.methods.base import FeatureKind, Job, LossReason, Weights

BATCH = 200  # most deliveries of one `receive`
SETTLE_TIME = 20.0  # seconds after a connection until every device that is online has said so again
SHORT_CONNECTION, MANY_SHORT = 20.0, 4  # seconds; this many in a row are suspicious
SHARE_FROM = 64 << 10  # bytes: smaller models travel inside each job
_REASONS: dict[str, LossReason] = {"crash": "crash", "rejected": "rejected", "cancelled": "crash", "declined": "crash"}


@dataclass
class SharedModel:
    """A retained model that several jobs use."""

    topic: str
    weights: Weights
    jobs: set[int]


class MqttCarrier:
    """One run on one broker. A device is trusted with its own topics only: what it says there is its own word."""

    def __init__(
        self,
        account: Account,
        run: RunOnFleet,
        log: Log,
        removed: Callable[[], frozenset[int]] = frozenset,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run = run
        self._removed = removed
        self.log = log
        self.clock = clock
        self.guard = FloodGuard(wire.message_limit(run.weights), clock)
        self.link = Link(account, manual=True, deliver=self._admit)
        self._assemblers: dict[int, wire.Assembler] = {}  # of unfinished messages, by device
        self._working: dict[int, int] = {}  # device: its last job
        self._models: list[SharedModel] = []
        self._width = 0  # number of features of the last query
        self._up_since: float | None = None
        self._connections = 0
        self._others: set[str] = set()  # runs that were announced when this process first connected
        self._short = 0  # short connections in a row
        self.link.open()

    @property
    def steady(self) -> bool:
        """See `Carrier`."""
        return self._up_since is not None and self.clock() - self._up_since > SETTLE_TIME

    @property
    def connections(self) -> int:
        """See `Carrier`."""
        return self._connections

    def removed(self) -> frozenset[int]:
        """See `Carrier`."""
        return self._removed()

    # From devices

    def receive(self, timeout: float) -> list[Delivery]:
        """See `Carrier`."""
        found = self._mute()
        for item in self._arrived(timeout):
            if isinstance(item, Connected):
                self._welcome(item)
            elif isinstance(item, Disconnected):
                self._lose_connection(item)
            elif isinstance(item, Packet) and item.topic == RUN_TOPIC:
                self.link.confirm(item)  # before the run may end: else it comes again to the next one
                self._check_alone(item.payload)
            elif isinstance(item, Packet):
                news = self._read(item)
                if news is None:
                    self.link.confirm(item)
                else:
                    found.append(Delivery(news, item))
        return found

    def confirm(self, deliveries: Sequence[Delivery]) -> None:
        """See `Carrier`."""
        for delivery in deliveries:
            if delivery.receipt is not None:
                self.link.confirm(delivery.receipt)

    def _admit(self, item: Incoming | None) -> None:
        """Called by the library's thread. What a flood has left in the queue is dropped here, where it costs least."""
        if isinstance(item, Packet) and not self.guard.passes(item):
            self.link.confirm(item)
        else:
            self.link.incoming.put(item)

    def _mute(self) -> list[Delivery]:
        """Stops listening to devices that flood the queue. The broker knows no "all but one": from then on there is a
        subscription for each of the others, first made, then the common ones ended, so that nothing is lost."""
        flooding = self.guard.take()
        if not flooding:
            return []
        self.link.subscribe(*self._subscriptions())
        mute = [topic for device in flooding for topic in (here_topic(device), up_topic(device))]
        self.link.unsubscribe(EVERY_HERE, EVERY_UP, *mute)
        text = f"floods the broker with messages: not heard for {MUTE_TIME:g} s; remove it if it does so again"
        return [Delivery(Declined(device, text)) for device in flooding]

    def _subscriptions(self) -> list[str]:
        """Where the devices speak that the server listens to."""
        muted = self.guard.muted
        if not muted:
            return [EVERY_HERE, EVERY_UP]
        heard = [device for device in range(self.run.devices) if device not in muted]
        return [*map(here_topic, heard), *map(up_topic, heard)]

    def _arrived(self, timeout: float) -> Iterator[Incoming | None]:
        try:
            yield self.link.incoming.get(timeout=max(0.0, timeout))
            for _ in range(BATCH - 1):
                yield self.link.incoming.get_nowait()
        except queue.Empty:
            return

    def _welcome(self, connected: Connected) -> None:
        self.log.info("connected to the broker", resumed=connected.resumed)
        self._up_since = self.clock()
        self._connections += 1
        self._assemblers.clear()
        self.guard.packet_bytes = self.link.packet_limit
        self.link.subscribe(RUN_TOPIC, *self._subscriptions())  # the greeting first that is there now
        values = {"run": self.run.id, "greeting": self.run.greeting}
        [packet] = wire.encode("greeting", values)
        self.link.publish(RUN_TOPIC, packet, retain=True)
        for model in self._models:  # a broker that lost its memory has lost these
            self._publish_model(model)

    def _lose_connection(self, lost: Disconnected) -> None:
        if self._up_since is not None:
            self._short = self._short + 1 if self.clock() - self._up_since < SHORT_CONNECTION else 0
        self._up_since = None
        self.log.warn(f"broker: {lost.text}")
        if self._short >= MANY_SHORT:
            self.log.warn("the broker ends each connection soon: another server may use the certificate of this fleet")

    def _read(self, packet: Packet) -> News | None:
        found = sender_of(packet.topic)
        if found is None:
            return None
        device, word = found
        if word == "here":
            return self._read_here(device, packet.payload)
        try:
            content = self._assembler(device).add(packet.payload)
            return None if content is None else self._read_up(device, content)
        except wire.Malformed as error:
            return Nonsense(device, str(error))

    def _check_alone(self, greeting: bytes) -> None:
        """Two servers take each other's place at the broker again and again: connections are short, and each finds the
        other's greeting where it had left its own. The one that has come last gives up. That it has met a greeting once
        is no proof: an earlier run that was interrupted has left its own."""
        try:
            content = wire.Assembler(wire.GREETING_LIMIT).add(greeting) if greeting else None
            run = self.run.id if content is None else wire.decode(content, {"greeting": 0}).text("run")
        except wire.Malformed:
            run = ""
        if run == self.run.id:
            return
        if self._connections == 1:
            self._others.add(run)
        elif self._short and run in self._others:
            raise RunStopped("another server has started a run on this fleet: both have its certificate; stop one")

    def _assembler(self, device: int) -> wire.Assembler:
        """Only a device with a job may send something as large as a model."""
        limit = wire.message_limit(self.run.weights if device in self._working else self._width)
        assembler = self._assemblers.setdefault(device, wire.Assembler(limit))
        assembler.limit = limit
        return assembler

    def _read_here(self, device: int, payload: bytes) -> News | None:
        if not payload:
            return Gone(device)
        try:
            content = wire.Assembler(wire.OVERHEAD).add(payload)
            if content is None:
                return Nonsense(device, "its presence comes in pieces")
            record = wire.decode(content, {"here": 0, "gone": 0})
        except wire.OtherVersion as error:
            return Declined(device, str(error))
        except wire.Malformed as error:
            return Nonsense(device, str(error))
        if record.kind == "gone":
            return Gone(device, record.text("process")[:64])
        if record.text("run") != self.run.id:
            return None  # it has not joined this run yet
        if record.text("declined"):
            return Declined(device, record.text("declined")[:200])
        return Here(device, record.text("process")[:64], record.count("samples"))

    def _read_up(self, device: int, content: memoryview) -> News | None:
        lengths = {"trained": self.run.weights, "ready": 0, "failed": 0, "features": self._width, "refused": 0}
        record = wire.decode(content, lengths)
        if record.text("run") != self.run.id:
            return None
        if record.kind == "trained":
            job = record.count("job")
            if record.problem:
                return JobFailed(device, job, "rejected", record.problem)
            return Trained(device, job, wire.reply_of(record))
        if record.kind == "ready":
            return Ready(device, record.count("job"), record.amount("seconds"), record.amount("joules"))
        if record.kind == "failed":
            reason, text = record.text("reason"), record.text("text")[:200]
            if reason == "unknown":
                return JobFailed(device, record.count("job"), "unknown", text)
            return JobFailed(device, record.count("job"), _REASONS.get(reason, "rejected"), text)
        if record.kind == "features":
            features = None if record.problem else record.vector
            return Described(device, record.count("query"), features, record.problem)
        return Described(device, record.count("query"), None, record.text("text")[:200])

    # To devices

    def expect(self, jobs: Sequence[Job]) -> None:
        """See `Carrier`."""
        self._working.update((job.device, job.number) for job in jobs)

    def send(self, jobs: Sequence[Job]) -> None:
        """See `Carrier`."""
        users = Counter(id(job.weights) for job in jobs)
        for job in jobs:
            self._working[job.device] = job.number
            sharing = users[id(job.weights)] > 1 and job.weights.nbytes >= SHARE_FROM
            model = self._shared(job.weights) if sharing else None
            if model is not None:
                model.jobs.add(job.number)
            self._send_job(job, "" if model is None else model.topic)

    def _send_job(self, job: Job, topic: str) -> None:
        values = wire.job_values(self.run.id, job.number, told(job), topic, job.correction is not None)
        vector = wire.job_vector(job.weights[:0] if topic else job.weights, job.correction)
        self._publish(down_topic(job.device), "job", values, vector, expires=self.run.ttl)

    def _shared(self, weights: Weights) -> SharedModel:
        for model in self._models:
            if model.weights is weights:
                return model
        model = SharedModel(f"{MODEL_TOPICS}/{secrets.token_hex(8)}", weights, set())
        self._models.append(model)
        self._publish_model(model)
        return model

    def _publish_model(self, model: SharedModel) -> None:
        """It expires with the jobs that use it, in case this process is killed before it can remove it."""
        self._publish(model.topic, "model", {}, model.weights, retain=True, expires=self.run.ttl)

    def recall(self, job: Job) -> None:
        """See `Carrier`."""
        self._working[job.device] = job.number
        self._say(job.device, "recall", job.number)

    def cancel(self, device: int, job: int) -> None:
        """See `Carrier`."""
        self._say(device, "cancel", job)

    def finish(self, device: int, job: int) -> None:
        """See `Carrier`."""
        self._say(device, "finish", job)

    def fetch(self, device: int, job: int) -> None:
        """See `Carrier`."""
        self._say(device, "fetch", job)

    def _say(self, device: int, kind: str, job: int) -> None:
        self._publish(down_topic(device), kind, {"run": self.run.id, "job": job}, expires=self.run.ttl)

    def ask(self, query: int, weights: Weights, kind: FeatureKind, seconds: float) -> None:
        """See `Carrier`."""
        self._width = self.run.feature_width(kind)
        values: dict[str, wire.Value] = {"run": self.run.id, "query": query, "features": kind}
        self._publish(QUERY_TOPIC, "query", values, weights, expires=seconds)

    def tidy(self, jobs: Container[int]) -> None:
        """See `Carrier`. An empty retained message removes the model from the broker."""
        for device in self.guard.pardon():
            self.link.subscribe(here_topic(device), up_topic(device))
        for device in [device for device, job in self._working.items() if job not in jobs]:
            del self._working[device]
            self._assemblers.pop(device, None)
        for model in self._models:
            model.jobs = {job for job in model.jobs if job in jobs}
            if not model.jobs:
                self._remove(model)
        self._models = [model for model in self._models if model.jobs]

    def _remove(self, model: SharedModel) -> None:
        for topic in self._topics(model.topic, len(self._packets("model", {}, model.weights))):
            self.link.publish(topic, b"", retain=True)

    def _publish(
        self,
        topic: str,
        kind: str,
        values: dict[str, wire.Value],
        vector: Weights | None = None,
        retain: bool = False,
        expires: float | None = None,
    ) -> None:
        packets = self._packets(kind, values, vector)
        names = self._topics(topic, len(packets)) if retain else [topic] * len(packets)
        for name, packet in zip(names, packets, strict=True):
            self.link.publish(name, packet, retain, expires)

    def _packets(self, kind: str, values: dict[str, wire.Value], vector: Weights | None = None) -> list[bytes]:
        piece = piece_size(self.link.packet_limit)
        return wire.encode(kind, values, piece=piece) if vector is None else wire.encode(kind, values, vector, piece)

    @staticmethod
    def _topics(topic: str, count: int) -> list[str]:
        """A topic keeps one retained message, so each piece has a topic of its own."""
        return [f"{topic}/{number}" for number in range(count)]

    def wake(self) -> None:
        """See `Carrier`."""
        self.link.wake()

    def close(self, finished: bool) -> None:
        """See `Carrier`. A run that is not finished stays announced: devices keep what they have loaded."""
        last = [(RUN_TOPIC, b"")] if finished else []
        if finished:
            for model in self._models:
                self._remove(model)
        self.link.close(*last)
