"""Connects the network with the engine. Answers become inputs, which are journaled before they take effect; orders
become messages."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cabafl.deployment.messages import Answer, FeatureReply, Hello, TrainingReply, Trouble
from cabafl.deployment.server.carrier import Carrier
from cabafl.engine.inputs import Arrived, Failed, Gathered, Input, Joined, Left, Passed, Started
from cabafl.engine.journal import Journal
from cabafl.engine.wall import WallEngine
from cabafl.methods.base import LossReason

NODE_INTERVAL = 2.0  # seconds between two checks of which nodes are online
REGREET_AFTER = 300.0  # seconds after which a device that is still training is greeted again
MAX_RESENDS = 3  # how often a job is sent again before it counts as lost


class PendingGreeting(NamedTuple):
    """A greeting without an answer yet."""

    node: int
    job: int | None  # the job its device had when the greeting was sent


class Dispatcher:
    """One run on one network. ``devices`` maps nodes to devices; the network has authenticated them.

    The run and its clock start when ``enough`` devices have answered the greeting. ``clock`` returns seconds.
    """

    def __init__(
        self,
        engine: WallEngine,
        carrier: Carrier,
        journal: Journal,
        devices: Mapping[int, int],
        *,
        enough: int,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.carrier = carrier
        self.journal = journal
        self.enough = enough
        self.clock = clock
        self.warn = warn
        self.seen: dict[int, float] = {}  # last answer of each device, in seconds since the epoch
        self._device = dict(devices)  # by node
        self._node = {device: node for node, device in devices.items()}
        self._online: set[int] = set()  # nodes that were greeted
        self._regreet: set[int] = set()  # nodes to greet again at the next check
        self._greeted_at: dict[int, float] = {}  # by device, on `clock`
        self._resends: Counter[int] = Counter()  # by job
        self._checked_nodes_at: float | None = None  # on `clock`
        self._start: float | None = None  # on `clock`: where the run's time is 0
        self._greetings: dict[str, PendingGreeting] = {}  # by message
        self._jobs: dict[str, int] = {}  # message: job
        self._questions: dict[str, int] = {}  # message: device
        self._rows: dict[int, npt.NDArray[np.float32]] = {}  # features by device
        self._unsent: list[int] = []  # jobs ordered by the engine
        self._asking = False  # the engine has ordered a feature collection that is not sent yet

    # The loop

    @property
    def started(self) -> bool:
        """Whether the run and its clock have started."""
        return self.engine.started

    def now(self) -> float:
        """Seconds since the run started; 0 before."""
        return 0.0 if self._start is None else self.clock() - self._start

    def step(self) -> bool:
        """Polls the network once; returns whether anything happened."""
        now = self.now()
        before = self.journal.length
        self._check_nodes(now)
        waiting = [*self._greetings, *self._jobs, *self._questions]
        for answer in self.carrier.receive(waiting) if waiting else []:
            self._take(answer, now)
        if not self.started and len(self.engine.present) >= self.enough:
            self._start = self.clock()
            self._give(Started(now))
        if self.engine.next_alarm() <= now:
            self._give(Passed(now))
        self._close_question(now)
        self.send_orders()
        return self.journal.length > before

    def _give(self, given: Input) -> None:
        self.journal.add(given)
        self.journal.commit()
        self.replay(given)

    def replay(self, given: Input) -> None:
        """Handles an input that is already in the journal."""
        self.engine.handle(given)
        orders = self.engine.take_orders()
        self._unsent += orders.jobs
        self._asking = self._asking or orders.ask

    def resume(self, now: float) -> None:
        """Continues the run at time ``now``, after a replay of the journal or on a new network. Sends all jobs under
        way, asks for features and greets devices again."""
        if self.started:
            self._start = self.clock() - now
        self._jobs, self._unsent = {}, list(self.engine.flights)
        self._asking = self.engine.question is not None
        self._greetings, self._questions = {}, {}
        for device in sorted(self.engine.present - self._node.keys()):
            self._give(Left(now, device))  # banned in the meantime
        self._online = {self._node[device] for device in self.engine.present}
        for node in sorted(self._online):
            self._greet(node)

    def send_orders(self) -> None:
        """Sends the jobs and the feature query ordered by the engine."""
        while self._unsent:
            number = self._unsent[0]
            flight = self.engine.flights.get(number)
            if flight is not None:  # else cancelled before it was sent
                message = self.carrier.send(self._node[flight.device], flight)
                self._jobs[message] = number
            del self._unsent[0]
        question = self.engine.question
        if self._asking and question is not None:
            here = [int(device) for device in question.asked if int(device) in self.engine.present]
            self._questions = {self.carrier.ask(self._node[d], question.weights, question.kind): d for d in here}
            self._rows = {}
        self._asking = False

    # Which devices are online

    def _check_nodes(self, now: float) -> None:
        clock = self.clock()
        if self._checked_nodes_at is not None and clock - self._checked_nodes_at < NODE_INTERVAL:
            return
        self._checked_nodes_at = clock
        online = self.carrier.nodes() & self._device.keys()
        if self.carrier.settling:
            online |= self._online
        for node in sorted((online - self._online) | (online & self._regreet)):
            self._greet(node)
        self._regreet = set()
        for node in sorted(self._online - online):
            self._greetings = {m: g for m, g in self._greetings.items() if g.node != node}
            self._drop(self._device[node], now)
        self._online = online
        for flight in list(self.engine.flights.values()):
            if clock - self._greeted_at.get(flight.device, clock) > REGREET_AFTER and flight.device in self._node:
                self._greet(self._node[flight.device])

    def _greet(self, node: int) -> None:
        """Asks a device to join. The answer also shows whether the process that got its job is still running."""
        device = self._device[node]
        self._greeted_at[device] = self.clock()
        flight = self.engine.flight_of(device)
        self._greetings[self.carrier.greet(node)] = PendingGreeting(node, None if flight is None else flight.number)

    def _drop(self, device: int, now: float) -> None:
        self._questions = {m: d for m, d in self._questions.items() if d != device}
        if device in self.engine.present:
            self._give(Left(now, device))

    # Answers

    def _take(self, answer: Answer, now: float) -> None:
        message, content = answer
        if message in self._greetings:
            self._take_hello(self._greetings.pop(message), content, now)
        elif message in self._jobs:
            self._take_job(self._jobs.pop(message), content, now)
        elif message in self._questions:
            device = self._questions.pop(message)
            if isinstance(content, FeatureReply):
                self._rows[device] = content.features
                self.seen[device] = time.time()
            else:
                self.warn(f"device {device}: no features: {_text(content)}")

    def _take_hello(self, greeting: PendingGreeting, content: object, now: float) -> None:
        device = self._device[greeting.node]
        if not isinstance(content, Hello):
            self._regreet.add(greeting.node)
            self.warn(f"device {device}: does not take part: {_text(content)}")
            return
        self.seen[device] = time.time()
        flight = self.engine.flight_of(device)
        job = None if flight is None else flight.number
        unchanged = device in self.engine.present and self.engine.sizes[device] == content.samples
        job_lost = content.fresh and job is not None and job == greeting.job  # the process that got the job has died
        if not unchanged or job_lost or (job is None and device not in self.engine.idle):
            self._give(Joined(now, device, content.samples))

    def _take_job(self, number: int, content: object, now: float) -> None:
        flight = self.engine.flights.get(number)
        if isinstance(content, TrainingReply):
            if flight is not None:
                self.seen[flight.device] = time.time()
            self._give(Arrived(now, number, content.weights, content.seconds, content.joules, content.loss))
        elif flight is None:
            return
        elif isinstance(content, Trouble) and content.reason == "unknown":
            self._send_again(number, flight.abandoned, now)
        else:
            self._regreet.add(self._node[flight.device])  # a restarted process needs the greeting again
            self._give(Failed(now, number, _reason(content)))
            self.warn(f"device {flight.device}: job {number} lost: {_text(content)}")

    def _send_again(self, number: int, abandoned: bool, now: float) -> None:
        """Handles a job whose answer was fetched by an earlier server, or whose message expired."""
        self._resends[number] += 1
        if abandoned:
            self._give(Failed(now, number, "timeout"))
        elif self._resends[number] > MAX_RESENDS:
            self._give(Failed(now, number, "crash"))
        else:
            self._unsent.append(number)

    def _close_question(self, now: float) -> None:
        """Ends a feature collection when all devices have answered or its time is up."""
        question = self.engine.question
        if question is None or self._asking:
            return
        if self._questions and now < question.until:
            return
        [(width, _)] = Counter(len(row) for row in self._rows.values()).most_common(1) or [(0, 0)]
        table = np.zeros((len(self.engine.sizes), width), dtype=np.float32)
        answered = np.zeros(len(table), dtype=bool)
        for device, row in self._rows.items():
            if len(row) == width:
                table[device], answered[device] = row, True
            else:
                self.warn(f"device {device}: {len(row)} features instead of {width}")
        self._questions, self._rows = {}, {}
        self._give(Gathered(now, table, answered))


def _text(content: object) -> str:
    return content.text if isinstance(content, Trouble) else f"answered with a {type(content).__name__}"


def _reason(content: object) -> LossReason:
    if isinstance(content, Trouble) and content.reason != "unknown":
        return content.reason
    return "rejected"
