"""A network in simulated time: what a server has not confirmed comes again, and devices keep their last answer."""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cabafl.deployment.log import Log
from cabafl.deployment.messages import Described, Gone, Here, JobFailed, News, Ready, Trained, TrainingReply
from cabafl.deployment.server.carrier import Delivery
from cabafl.deployment.server.dispatcher import Dispatcher
from cabafl.engine.journal import Journal
from cabafl.methods.base import FeatureKind, Job, Weights
from cabafl.recording.events import Event, Lost, Uploaded
from cabafl.rng import rng
from tests.fleet_play import DEVICES, FEATURES, SIZES, trained, wall_engine

SETTLE_TIME = 3.0
Answer = Callable[[Job], News | None]


class Killed(BaseException):
    """The server dies here."""


class PlayDevice:
    """One device: its process, its last job and the answer to it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.samples = SIZES[number]
        self.starts = 0
        self.online = True
        self.restart()

    def restart(self) -> None:
        """A new process, which knows nothing of the one before."""
        self.starts += 1
        self.process = f"{self.number}.{self.starts}"
        self.latest = -1
        self.answer: News | None = None
        self.held: News | None = None  # what it uploads when it is asked

    def here(self) -> Here:
        """Its presence."""
        return Here(self.number, self.process, self.samples)


class PlayNetwork:
    """Broker and devices. Survives the server; `connect` begins a server's connection."""

    def __init__(self, seed: int = 3) -> None:
        self.now = 0.0
        self.draw = rng(seed, "network")
        self.devices = [PlayDevice(number) for number in range(DEVICES)]
        self.answers: dict[int, Answer] = {}  # device: how it answers a job, instead of training it
        self.features: dict[int, Callable[[int], News | None]] = {}  # device: how it answers a query
        self.agenda: list[tuple[float, PlayDevice, str, Callable[[], News | None]]] = []
        self.queue: list[Delivery] = []  # not confirmed
        self.handed: set[int] = set()  # receipts that the server has, on this connection
        self.sent: list[Job] = []
        self.trainings: Counter[int] = Counter()
        self.recalls: list[tuple[int, int]] = []  # device and job
        self.cancelled: list[tuple[int, int]] = []
        self.finished: list[tuple[int, int]] = []
        self.fetched: list[tuple[int, int]] = []
        self.deaf: set[int] = set()  # devices that miss what they are told besides jobs
        self.queries: list[int] = []
        self.calls: list[str] = []
        self.fuse: int | None = None  # so many calls until the server dies
        self.away: frozenset[int] = frozenset()
        self.journal: Journal | None = None  # of the server
        self.connections = 0
        self._up = 0.0
        self._receipts = 0

    def tick(self, call: str) -> None:
        """Counts a call of the server; it may be its last. Nothing leaves the server before it is in the journal."""
        if call != "receive" and self.journal is not None:
            assert not self.journal._pending, f"{call} before the journal is written"
        self.calls.append(call)
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                raise Killed

    # The world

    def connect(self) -> None:
        """A new connection of the server: presence and everything unconfirmed come again."""
        self.connections += 1
        self._up = self.now
        self.handed = set()
        for device in self.devices:
            if device.online:
                self.put(device.here())

    def put(self, news: News) -> None:
        """Something for the server."""
        self._receipts += 1
        self.queue.append(Delivery(news, self._receipts))

    def pass_time(self, seconds: float) -> None:
        """Lets devices finish what is due by then."""
        self.now += seconds
        due = [entry for entry in self.agenda if entry[0] <= self.now]
        self.agenda = [entry for entry in self.agenda if entry[0] > self.now]
        for _, device, process, make in due:
            news = make() if device.process == process else None
            if news is not None:
                if isinstance(news, Trained | Ready | JobFailed) and news.job == device.latest:
                    device.answer = news
                self.put(news)

    def later(self, device: PlayDevice, seconds: float, make: Callable[[], News | None]) -> None:
        """The device says something after a while, if its process is still the same."""
        self.agenda.append((self.now + seconds, device, device.process, make))

    def leave(self, number: int) -> None:
        """The device loses its connection."""
        self.devices[number].online = False
        self.put(Gone(number))

    def join(self, number: int) -> None:
        """A device comes back, as a new process."""
        device = self.devices[number]
        device.restart()
        device.online = True
        self.put(device.here())

    # See `Carrier`

    @property
    def steady(self) -> bool:
        return self.now - self._up > SETTLE_TIME

    def removed(self) -> frozenset[int]:
        return self.away

    def receive(self, timeout: float) -> list[Delivery]:
        self.tick("receive")
        found = [delivery for delivery in self.queue if delivery.receipt not in self.handed]
        self.handed |= {delivery.receipt for delivery in found}
        return found

    def confirm(self, deliveries: Sequence[Delivery]) -> None:
        done = {delivery.receipt for delivery in deliveries}
        if done:
            self.tick("confirm")
        self.queue = [delivery for delivery in self.queue if delivery.receipt not in done]

    def expect(self, jobs: Sequence[Job]) -> None: ...

    def send(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.tick("send")
            self.sent.append(job)
            self._take_job(self.devices[job.device], job)

    def _take_job(self, device: PlayDevice, job: Job) -> None:
        if not device.online or job.number <= device.latest:
            return
        device.latest, device.answer, device.held = job.number, None, None
        self.trainings[job.number] += 1
        answer = self.answers.get(device.number, honest)
        self.later(device, float(self.draw.uniform(0.5, 4.0)), lambda: self._end(device, job, answer))

    def _end(self, device: PlayDevice, job: Job, answer: Answer) -> News | None:
        news = answer(job)
        if not job.objective.hold or not isinstance(news, Trained):
            return news
        if job.number == device.latest:
            device.held = news
        return Ready(device.number, job.number, 1.0, 2.0)

    def recall(self, job: Job) -> None:
        self.tick("recall")
        self.recalls.append((job.device, job.number))
        device = self.devices[job.device]
        if not device.online:
            return
        if job.number != device.latest:
            self.put(JobFailed(device.number, job.number, "unknown", ""))
        elif device.answer is not None:
            self.put(device.answer)

    def cancel(self, device: int, job: int) -> None:
        self.tick("cancel")
        self.cancelled.append((device, job))

    def finish(self, device: int, job: int) -> None:
        self.tick("finish")
        self.finished.append((device, job))

    def fetch(self, device: int, job: int) -> None:
        self.tick("fetch")
        self.fetched.append((device, job))
        own = self.devices[device]
        if own.online and own.latest == job and own.held is not None and device not in self.deaf:
            held = own.held
            self.later(own, 0.2, lambda: held)

    def ask(self, query: int, weights: Weights, kind: FeatureKind, seconds: float) -> None:
        self.tick("ask")
        self.queries.append(query)
        for device in self.devices:
            make = self.features.get(device.number, lambda query, n=device.number: Described(n, query, FEATURES[n]))
            if device.online:
                self.later(device, 0.3, lambda make=make: make(query))  # type: ignore[misc]

    def tidy(self, jobs: Container[int]) -> None:
        self.tick("tidy")

    def wake(self) -> None: ...

    def close(self, finished: bool) -> None: ...


def honest(job: Job) -> News:
    """The upload of a device that has trained."""
    return Trained(job.device, job.number, TrainingReply(trained(job.number, job.weights), 1.0, 2.0, None))


class TickingJournal(Journal):
    """A journal whose commits the network counts; the server may die after each."""

    network: PlayNetwork

    def commit(self) -> None:
        if self._pending:
            super().commit()
            self.network.tick("commit")


class Server:
    """A server that continues from the journal in ``folder``, with its events since the beginning of the run."""

    def __init__(self, network: PlayNetwork, folder: Path, name: str = "fedasync", **options: Any) -> None:
        self.network = network
        self.events: list[Event] = []
        self.lines: list[str] = []
        self.journal = TickingJournal(folder)
        self.journal.network, network.journal = network, self.journal
        self.engine = wall_engine(name, self.events.append, **options.pop("limits", {}))
        log = Log(file=self)  # type: ignore[arg-type]
        options = {"enough": DEVICES, **options}
        self.dispatcher = Dispatcher(self.engine, network, self.journal, log, clock=lambda: network.now, **options)
        network.connect()
        if self.journal.length:
            now = 0.0
            for number, given in self.journal.inputs():
                self.dispatcher.replay(number, given)
                now = max(now, given.time)
            self.dispatcher.resume(now)

    def write(self, text: str) -> None:
        """A line of the log."""
        self.lines.append(text)

    def flush(self) -> None:
        """Lines are kept."""

    def run(self, until: float, step: float = 0.05) -> None:
        """Steps of so many seconds."""
        while self.network.now < until:
            self.dispatcher.step(0.5)
            self.network.pass_time(step)

    @property
    def uploads(self) -> list[int]:
        """The jobs whose uploads were counted."""
        return [event.job for event in self.events if isinstance(event, Uploaded)]

    @property
    def losses(self) -> list[tuple[int, str]]:
        """Device and reason of each lost job."""
        return [(event.device, event.reason) for event in self.events if isinstance(event, Lost)]

    def said(self, text: str) -> int:
        """How many lines of the log contain this."""
        return sum(text in line for line in self.lines)


def constant(weights: Any, job_of: Callable[[Job], int] = lambda job: job.number) -> Answer:
    """A device that uploads the same numbers whatever it gets."""
    reply = TrainingReply(np.array(weights, dtype=np.float32), 1.0, 2.0, None)
    return lambda job: Trained(job.device, job_of(job), reply)
