"""A broker in this process, with the interface of `mqtt.link.Link`, and devices that answer at once."""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cabafl.deployment.device.loop import Worker
from cabafl.deployment.device.participant import Participant
from cabafl.deployment.device.session import (
    Action,
    Complain,
    Describe,
    Fetch,
    Join,
    Leave,
    Publish,
    Session,
    Train,
)
from cabafl.deployment.folder.layout import SERVER, Device
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.log import Log
from cabafl.deployment.messages import TrainingJob
from cabafl.deployment.mqtt.carrier import MqttCarrier
from cabafl.deployment.mqtt.link import RUN_TOPIC, Account, Connected, Credentials, Disconnected, Incoming, Packet, Will
from cabafl.deployment.server.carrier import RunOnFleet

NOWHERE = Credentials(Path("ca"), Path("certificate"), Path("key"))


class Sent(NamedTuple):
    """A message as a client has published it."""

    topic: str
    payload: bytes
    retain: bool
    expires: float | None


def matches(pattern: str, topic: str) -> bool:
    """Whether a topic belongs to a subscription with ``+``."""
    words, others = pattern.split("/"), topic.split("/")
    return len(words) == len(others) and all(a in ("+", b) for a, b in zip(words, others, strict=True))


@dataclass
class Client:
    """What the broker keeps of a client, also while it is away."""

    link: "MemoryLink | None" = None
    patterns: list[str] = field(default_factory=list)
    unconfirmed: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    mids: int = 0


class MemoryBroker:
    """Retained messages, persistent sessions, acknowledgements; no access list."""

    def __init__(self, packet_limit: int | None = None) -> None:
        self.packet_limit = packet_limit
        self.retained: dict[str, bytes] = {}
        self.clients: dict[str, Client] = {}
        self.devices: list[MemoryDevice] = []
        self.sent: list[Sent] = []

    def link(
        self,
        account: Account,
        will: Will | None = None,
        manual: bool = False,
        deliver: Callable[[Incoming | None], None] | None = None,
    ) -> "MemoryLink":
        """Takes the place of the class `Link`."""
        made = MemoryLink(self, account, will, manual)
        made.deliver = deliver or made.incoming.put
        return made

    def publish(self, topic: str, payload: bytes, retain: bool = False, expires: float | None = None) -> None:
        """Passes a message on, and keeps it for those who are away."""
        self.sent.append(Sent(topic, payload, retain, expires))
        if retain and payload:
            self.retained[topic] = payload
        elif retain:
            self.retained.pop(topic, None)
        for client in self.clients.values():
            if any(matches(pattern, topic) for pattern in client.patterns):
                self._queue(client, topic, payload)
        for device in self.devices:
            if any(matches(pattern, topic) for pattern in device.patterns):
                device.take(topic, payload)

    def _queue(self, client: Client, topic: str, payload: bytes) -> None:
        client.mids += 1
        client.unconfirmed[client.mids] = topic, payload
        if client.link is not None:
            client.link.hand_over(client.mids, topic, payload)

    def payloads(self, topic: str) -> list[bytes]:
        """What was published there."""
        return [sent.payload for sent in self.sent if sent.topic == topic]


class MemoryLink:
    """One connection of one client."""

    def __init__(self, broker: MemoryBroker, account: Account, will: Will | None, manual: bool) -> None:
        self.broker, self.account, self.will, self.manual = broker, account, will, manual
        self.incoming: queue.SimpleQueue[Incoming | None] = queue.SimpleQueue()
        self.deliver: Callable[[Incoming | None], None] = self.incoming.put
        self.connection = 0
        self.online = threading.Event()
        self.packet_limit = broker.packet_limit
        self.slow = False
        self.client = broker.clients.setdefault(account.user, Client())

    def open(self) -> None:
        """Connects at once."""
        resumed = bool(self.client.patterns)
        self.connection += 1
        self.client.link = self
        self.online.set()
        self.incoming.put(Connected(resumed))
        for mid, (topic, payload) in list(self.client.unconfirmed.items()):
            self.hand_over(mid, topic, payload)

    def hand_over(self, mid: int, topic: str, payload: bytes) -> None:
        """A message for this client."""
        self.deliver(Packet(topic, payload, mid, self.connection))
        if not self.manual:
            self.client.unconfirmed.pop(mid, None)

    def break_off(self, text: str = "disconnected", taken_over: bool = False) -> None:
        """The connection is lost."""
        self.client.link = None
        self.incoming.put(Disconnected(text, taken_over))

    def subscribe(self, *patterns: str) -> None:
        """See `Link`."""
        self.client.patterns += [pattern for pattern in patterns if pattern not in self.client.patterns]
        for topic, payload in list(self.broker.retained.items()):
            if any(matches(pattern, topic) for pattern in patterns):
                self.broker._queue(self.client, topic, payload)

    def unsubscribe(self, *patterns: str) -> None:
        """See `Link`."""
        self.client.patterns = [pattern for pattern in self.client.patterns if pattern not in patterns]

    def publish(self, topic: str, payload: bytes, retain: bool = False, expires: float | None = None) -> None:
        """See `Link`."""
        self.broker.publish(topic, payload, retain, expires)

    def confirm(self, packet: Packet) -> None:
        """See `Link`."""
        if packet.connection == self.connection:
            self.client.unconfirmed.pop(packet.mid, None)

    def slow_down(self, slow: bool = True) -> None:
        """See `Link`."""
        self.slow = slow

    def wake(self) -> None:
        """See `Link`."""
        self.incoming.put(None)

    def close(self, *last: tuple[str, bytes]) -> None:
        """See `Link`."""
        for topic, payload in last:
            self.broker.publish(topic, payload, retain=True)
        self.client.link = None
        self.online.clear()


class MemoryDevice:
    """A session with a worker that does everything at once, in the thread that publishes."""

    def __init__(self, broker: MemoryBroker, number: int, worker: Worker) -> None:
        self.broker, self.worker = broker, worker
        self.session = Session(number, f"process {number}")
        self.patterns = list(self.session.subscriptions)
        self.trained: list[TrainingJob] = []
        self.complaints: list[str] = []
        broker.devices.append(self)
        self.act(self.session.connected(broker.packet_limit))
        if RUN_TOPIC in broker.retained:
            self.take(RUN_TOPIC, broker.retained[RUN_TOPIC])

    def take(self, topic: str, payload: bytes) -> None:
        """A message of the server."""
        self.act(self.session.take(topic, payload))

    def act(self, actions: Sequence[Action]) -> None:
        """Does what the session says."""
        for action in actions:
            if isinstance(action, Publish):
                self.broker.publish(action.topic, action.payload, action.retain)
            elif isinstance(action, Fetch):
                self.fetch(f"{action.topic}/+", action.on)
            elif isinstance(action, Join):
                greeting = Greeting.read(action.greeting)
                self.act(self.session.joined(action.run, greeting.weights, self.worker.join(greeting)))
            elif isinstance(action, Leave):
                self.worker.leave()
            elif isinstance(action, Train):
                self.train(action.job)
            elif isinstance(action, Describe):
                reply = self.worker.features(action.query)
                self.act(self.session.describe(action.query.number, reply))
            elif isinstance(action, Complain):
                self.complaints.append(action.text)

    def fetch(self, pattern: str, on: bool) -> None:
        """Subscribes, and gets the retained messages, or unsubscribes."""
        if not on:
            self.patterns.remove(pattern)
            return
        self.patterns.append(pattern)
        for topic, payload in list(self.broker.retained.items()):
            if matches(pattern, topic):
                self.take(topic, payload)

    def train(self, job: TrainingJob) -> None:
        """Answers a job; tests may replace this."""
        self.trained.append(job)
        reply = self.worker.train(job, lambda: False, lambda: False)
        assert reply is not None
        self.act(self.session.answer(job.number, reply, job.objective.hold))


class MemoryFleet:
    """See `server.carrier.Network`. Without a patched `Link` it connects to the real network."""

    def __init__(self, broker: MemoryBroker, folder: Path, devices: int) -> None:
        self.broker = broker
        self.devices: Sequence[int] = range(devices)
        self.carriers: list[MqttCarrier] = []
        for number in self.devices:
            MemoryDevice(broker, number, Participant(Device(folder, "here:1", number, number)))

    def open(self, run: RunOnFleet, log: Log) -> MqttCarrier:
        """Connects to the broker of this process."""
        self.carriers.append(MqttCarrier(Account("here", 1, SERVER, NOWHERE), run, log))
        return self.carriers[-1]
