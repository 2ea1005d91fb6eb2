"""What a device does with the packets it gets, without network, clock or training: packets in, actions out.

The resident device process and the light devices of a load test share it.
"""

from dataclasses import dataclass, replace
from typing import get_args

from cabafl.deployment import wire
from cabafl.deployment.messages import FeatureQuery, FeatureReply, TrainingJob, TrainingReply
from cabafl.deployment.mqtt.link import (
    MODEL_TOPICS,
    QUERY_TOPIC,
    RUN_TOPIC,
    down_topic,
    here_topic,
    piece_size,
    up_topic,
)
from cabafl.methods.base import FeatureKind


@dataclass(frozen=True)
class Publish:
    """Send this."""

    topic: str
    payload: bytes
    retain: bool = False


@dataclass(frozen=True)
class Fetch:
    """Subscribe to the pieces of a shared model (``on``), or unsubscribe."""

    topic: str
    on: bool


@dataclass(frozen=True)
class Join:
    """Get ready for a run; `Session.joined` or `Session.decline` follows."""

    run: str
    greeting: str


@dataclass(frozen=True)
class Leave:
    """The run is over."""


@dataclass(frozen=True)
class Train:
    """Work on a job, instead of any earlier one; `Session.answer` or `Session.fail` follows."""

    job: TrainingJob


@dataclass(frozen=True)
class Stop:
    """Stop working on a job."""

    job: int


@dataclass(frozen=True)
class Finish:
    """End the training of a job after the running epoch; `Session.answer` follows as if it had ended by itself."""

    job: int


@dataclass(frozen=True)
class Describe:
    """Answer a feature query; `Session.describe` or `Session.refuse` follows."""

    query: FeatureQuery


@dataclass(frozen=True)
class Complain:
    """The server has sent something that cannot be used: log it."""

    text: str


Action = Publish | Fetch | Join | Leave | Train | Stop | Finish | Describe | Complain


class Session:
    """The device's side of one or more runs, one after the other. ``process`` tells this process from earlier ones."""

    def __init__(self, device: int, process: str) -> None:
        self.device = device
        self.process = process
        self.piece = piece_size(None)  # bytes of a packet's content
        self.run = ""  # the run this device has joined or tries to join
        self.weights = 0  # length of its models; 0: not joined
        self._samples = 0
        self._declined = ""
        self._not_now = False
        self._latest = -1  # number of the last job
        self._waiting: tuple[TrainingJob, str] | None = (
            None  # a job whose model is still to come, and the model's topic
        )
        self._answer: list[Publish] = []  # to the last job
        self._held: TrainingReply | None = None  # the result of the last job, until the server fetches it
        self._assemblers: dict[str, wire.Assembler] = {}

    # The network

    def connected(self, limit: int | None = None) -> list[Action]:
        """What to send first; the loop subscribes to `subscriptions`. ``limit``: bytes of the broker's packets."""
        if limit is not None:
            self.piece = piece_size(limit)
        self._assemblers.clear()
        if self._waiting is None:
            return [self.presence()]
        return [self.presence(), Fetch(self._waiting[1], on=True)]  # pieces that have come before are gone

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """The topics a device listens to."""
        return RUN_TOPIC, QUERY_TOPIC, down_topic(self.device)

    def presence(self) -> Publish:
        """Says that this device is here, and whether it takes part."""
        declined = self._declined or ("not now" if self._not_now else "")
        ready = bool(self.weights or declined)
        values: dict[str, wire.Value] = {
            "run": self.run if ready else "",
            "process": self.process,
            "samples": self._samples,
            "declined": declined,
        }
        [packet] = wire.encode("here", values)
        return Publish(here_topic(self.device), packet, retain=True)

    def absence(self) -> Publish:
        """Says that this device is gone: its last will."""
        [packet] = wire.encode("gone", {"process": self.process})
        return Publish(here_topic(self.device), packet, retain=True)

    def take(self, topic: str, payload: bytes) -> list[Action]:
        """Handles a packet from the server."""
        try:
            if topic == RUN_TOPIC:
                return self._take_run(payload)
            if not self.weights:
                return []  # for an earlier process or run
            if topic.startswith(MODEL_TOPICS):
                return self._take_model(topic, payload)
            content = self._assembler(topic).add(payload)
            return [] if content is None else self._take_record(content)
        except wire.Malformed as error:
            return [Complain(f"a message of the server is refused: {error}")]

    def _assembler(self, name: str) -> wire.Assembler:
        limit = wire.message_limit(self.weights)
        assembler = self._assemblers.setdefault(name, wire.Assembler(limit))
        assembler.limit = limit
        return assembler

    def _take_run(self, payload: bytes) -> list[Action]:
        if not payload:
            known = bool(self.run or self._declined)
            return [*self._begin(""), Leave(), self.presence()] if known else []
        try:
            content = wire.Assembler(wire.GREETING_LIMIT).add(payload)
        except wire.OtherVersion as error:
            complaint = Complain(f"the server speaks {error}")
            return [complaint, *self._begin(""), Leave(), *self.decline("speaks another version of the protocol")]
        if content is None:
            raise wire.Malformed("a greeting in pieces")
        record = wire.decode(content, {"greeting": 0})
        if record.text("run") == self.run:
            return [self.presence()]
        return [*self._begin(record.text("run")), Join(self.run, record.text("greeting"))]

    def _begin(self, run: str) -> list[Action]:
        """Forgets the run before."""
        self.run, self.weights, self._declined = run, 0, ""
        self._latest, self._answer, self._held = -1, [], None
        self._assemblers.clear()
        return self._stop_waiting()

    def _stop_waiting(self) -> list[Action]:
        """Gives up a model that is still to come."""
        waiting, self._waiting = self._waiting, None
        return [] if waiting is None else [Fetch(waiting[1], on=False)]

    def _take_record(self, content: memoryview) -> list[Action]:
        lengths = {"job": self.weights, "query": self.weights}
        record = wire.decode(content, {**lengths, "cancel": 0, "finish": 0, "fetch": 0, "recall": 0})
        if record.text("run") != self.run:
            return []
        if record.kind == "query":
            return self._take_query(record)
        number = record.count("job")
        if record.kind == "job":
            return self._take_job(record, number)
        if record.kind == "cancel":
            return self._cancel(number)
        if record.kind == "finish":
            return [Finish(number)]
        if record.kind == "fetch" and number == self._latest and self._held is not None:
            return self.answer(number, self._held)
        return self._recall(number)

    def _take_job(self, record: wire.WireRecord, number: int) -> list[Action]:
        if number <= self._latest:
            return self._recall(number) if number == self._latest and self._waiting is None else []
        job, topic = wire.training_job(record, self.weights), record.text("model")
        self._latest, self._answer, self._held = number, [], None
        actions = self._stop_waiting()
        if record.problem:
            return [*actions, *self.fail(number, "rejected", record.problem)]
        if not topic:
            return [*actions, Train(job)]
        if not topic.startswith(f"{MODEL_TOPICS}/") or "+" in topic or "#" in topic:
            return [*actions, *self.fail(number, "rejected", "a model outside of its topics")]
        self._waiting = job, topic
        return [*actions, Stop(number - 1), Fetch(topic, on=True)]

    def _take_model(self, topic: str, payload: bytes) -> list[Action]:
        if self._waiting is None or not payload or not topic.startswith(self._waiting[1] + "/"):
            return []
        job = self._waiting[0]
        content = self._assembler(MODEL_TOPICS).add(payload)
        if content is None:
            return []
        record = wire.decode(content, {"model": self.weights})
        done = self._stop_waiting()
        if record.problem:
            return [*done, *self.fail(job.number, "rejected", record.problem)]
        return [*done, Train(replace(job, weights=record.vector))]

    def _take_query(self, record: wire.WireRecord) -> list[Action]:
        number, kind = record.count("query"), record.text("features")
        if record.problem:
            return self.refuse(number, record.problem)
        for known in get_args(FeatureKind):
            if kind == known:
                return [Describe(FeatureQuery(number, record.vector, known))]
        return self.refuse(number, "an unknown kind of features")

    def _cancel(self, number: int) -> list[Action]:
        """The server waits for a word on a job that it has given up, so there always is one."""
        if self._held is not None and self._latest <= number:
            return self.fail(self._latest, "cancelled", "cancelled")
        if self._waiting is None or self._waiting[0].number > number:
            return [Stop(number)]
        job = self._waiting[0].number
        return [*self._stop_waiting(), *self.fail(job, "cancelled", "cancelled")]

    def _recall(self, number: int) -> list[Action]:
        """Silent while the device works on the job. A job whose model has not come is unknown: it may never come."""
        actions: list[Action] = []
        if number == self._latest:
            if self._waiting is None:
                return list(self._answer)
            actions = self._stop_waiting()
            self._latest = number - 1  # takes it when it comes again
        return [*actions, self._up("failed", {"job": number, "reason": "unknown", "text": ""})]

    # What has been done

    def joined(self, run: str, weights: int, samples: int) -> list[Action]:
        """The device is ready for a run with models of this length."""
        if run != self.run:
            return []  # another one has begun meanwhile
        self.weights, self._samples, self._declined = weights, samples, ""
        return [self.presence()]

    def decline(self, text: str) -> list[Action]:
        """The device does not take part in this run."""
        self.weights, self._declined = 0, text
        return [self.presence()]

    def set_ready(self, ready: bool) -> list[Action]:
        """Whether the device's own conditions allow training now."""
        if self._not_now != ready:
            return []
        self._not_now = not ready
        return [self.presence()]

    def answer(self, job: int, reply: TrainingReply, hold: bool = False) -> list[Action]:
        """The upload, or with ``hold`` the word that it is ready; kept until the next job, in case it gets lost."""
        if hold:
            costs: dict[str, wire.Value] = {"seconds": float(reply.seconds), "joules": float(reply.joules)}
            return self._keep(job, [self._up("ready", {"job": job, **costs})], reply)
        values = wire.reply_values(self.run, job, reply)
        packets = wire.encode("trained", values, reply.weights, self.piece)
        return self._keep(job, [Publish(up_topic(self.device), packet) for packet in packets])

    def fail(self, job: int, reason: str, text: str) -> list[Action]:
        """There is no upload for a job."""
        return self._keep(job, [self._up("failed", {"job": job, "reason": reason, "text": text})])

    def describe(self, query: int, reply: FeatureReply) -> list[Action]:
        """The answer to a feature query."""
        packets = wire.encode("features", {"run": self.run, "query": query}, reply.features, self.piece)
        return [Publish(up_topic(self.device), packet) for packet in packets]

    def refuse(self, query: int, text: str) -> list[Action]:
        """The device does not answer a feature query."""
        return [self._up("refused", {"query": query, "text": text})]

    def _keep(self, job: int, answer: list[Publish], held: TrainingReply | None = None) -> list[Action]:
        if job > self._latest:
            return []  # of an earlier run
        if job == self._latest:
            self._answer, self._held = answer, held
        return list(answer)

    def _up(self, kind: str, values: dict[str, wire.Value]) -> Publish:
        [packet] = wire.encode(kind, {"run": self.run, **values})
        return Publish(up_topic(self.device), packet)
