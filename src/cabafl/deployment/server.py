"""Between the network and the engine: answers become inputs, which are in the journal before they take effect; orders
become messages."""

import time
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from cabafl.deployment.carrier import Answer, Carrier, Hello, Result, Row, Trouble
from cabafl.deployment.engine import Deployment
from cabafl.deployment.inputs import Arrived, Failed, Gathered, Input, Joined, Left, Started
from cabafl.deployment.journal import Journal
from cabafl.methods.base import LossReason

LOOK_FOR_NODES = 2.0  # seconds between two looks at who is online


class Server:
    """One run over one network. ``devices`` says which device a node is; the network has made sure of that.

    The run begins, and its time with it, when ``enough`` devices have answered the greeting. ``clock`` counts seconds.
    """

    def __init__(
        self,
        engine: Deployment,
        carrier: Carrier,
        journal: Journal,
        devices: Mapping[int, int],
        *,
        enough: int,
        clock: Callable[[], float],
        warn: Callable[[str], None],
    ) -> None:
        self.engine = engine
        self.carrier = carrier
        self.journal = journal
        self.enough = enough
        self.clock = clock
        self.warn = warn
        self.started = False
        self.seen: dict[int, float] = {}  # when a device was heard of last, in seconds since the epoch
        self._device = dict(devices)
        self._node = {device: node for node, device in devices.items()}
        self._online: set[int] = set()  # nodes that were greeted
        self._looked: float | None = None
        self._zero: float | None = None  # where the clock stood when the run's time was 0
        self._greetings: dict[str, int] = {}  # message: node
        self._jobs: dict[str, int] = {}  # message: job
        self._questions: dict[str, int] = {}  # message: device
        self._rows: dict[int, npt.NDArray[np.float32]] = {}

    # The loop

    def now(self) -> float:
        """The run's time."""
        return 0.0 if self._zero is None else self.clock() - self._zero

    def step(self) -> bool:
        """One look around; whether anything happened."""
        now = self.now()
        before = self.journal.length
        self._look_for_nodes(now)
        waiting = [*self._greetings, *self._jobs, *self._questions]
        for answer in self.carrier.receive(waiting) if waiting else []:
            self._take(answer, now)
        if not self.started and len(self.engine.present) >= self.enough:
            self._zero = self.clock()
            self._give(Started(now))
        if self.engine.next_alarm() <= now:
            self.engine.pass_time(now)
        self._close_question(now)
        self.send_orders()
        return self.journal.length > before

    def _give(self, given: Input) -> None:
        self.journal.add(given)
        self.replay(given)

    def replay(self, given: Input) -> None:
        """An input that is in the journal already."""
        self.started = self.started or isinstance(given, Started)
        self.engine.handle(given)

    def resume(self, now: float, same_network: bool = True) -> None:
        """After the journal was dealt with again, the run goes on at time ``now``: jobs that were sent are waited for,
        all others are sent. A network that has forgotten everything gets all of them anew. A question is asked again,
        and devices have to greet again; both do no harm twice."""
        if self.started:
            self._zero = self.clock() - now
        for device in sorted(self.engine.present - self._node.keys()):
            self._give(Left(now, device))  # shut out meanwhile
        sent = self.journal.sent() if same_network else {}
        self._greetings, self._questions = {}, {}
        self._jobs = {sent[number]: number for number in self.engine.flights if number in sent}
        self.engine.unsent = [number for number in self.engine.flights if number not in sent]
        self.engine.asking = self.engine.question is not None
        self._online = {self._node[device] for device in self.engine.present if device in self._node}
        for node in self._online:
            self._greetings[self.carrier.greet(node)] = node

    def send_orders(self) -> None:
        """Sends what the method has ordered."""
        for number in self.engine.unsent:
            flight = self.engine.flights.get(number)
            if flight is not None:  # else cancelled at once
                message = self.carrier.send(self._node[flight.device], flight)
                self.journal.add_sent(number, message)
                self._jobs[message] = number
        self.engine.unsent = []
        question = self.engine.question
        if self.engine.asking and question is not None:
            nodes = {int(device): self._node[int(device)] for device in question.asked}
            self._questions = {
                self.carrier.ask(node, question.weights, question.kind): device for device, node in nodes.items()
            }
            self._rows = {}
        self.engine.asking = False

    # Who is there

    def _look_for_nodes(self, now: float) -> None:
        clock = self.clock()
        if self._looked is not None and clock - self._looked < LOOK_FOR_NODES:
            return
        self._looked = clock
        online = self.carrier.nodes() & self._device.keys()
        for node in online - self._online:
            self._greetings[self.carrier.greet(node)] = node
        for node in self._online - online:
            self._greetings = {m: n for m, n in self._greetings.items() if n != node}
            self._lose_sight(self._device[node], now)
        self._online = online

    def _lose_sight(self, device: int, now: float) -> None:
        self._questions = {m: d for m, d in self._questions.items() if d != device}
        if device in self.engine.present:
            self._give(Left(now, device))

    # Answers

    def _take(self, answer: Answer, now: float) -> None:
        message, content = answer
        if message in self._greetings:
            self._take_greeting(self._greetings.pop(message), content, now)
        elif message in self._jobs:
            self._take_job(self._jobs.pop(message), content, now)
        elif message in self._questions:
            device = self._questions.pop(message)
            if isinstance(content, Row):
                self._rows[device] = content.features
                self.seen[device] = time.time()
            else:
                self.warn(f"device {device}: no features: {_text(content)}")

    def _take_greeting(self, node: int, content: object, now: float) -> None:
        device = self._device[node]
        if isinstance(content, Hello):
            self.seen[device] = time.time()
            known = device in self.engine.present and self.engine.sizes[device] == content.samples
            if not (known and self._is_expected_back(device)):
                self._give(Joined(now, device, content.samples))
        else:
            self.warn(f"device {device}: does not take part: {_text(content)}")
            self._online.discard(node)  # greeted again at the next look

    def _is_expected_back(self, device: int) -> bool:
        """After a restart of the server, devices answer a greeting that changes nothing."""
        flying = any(flight.device == device for flight in self.engine.flights.values())
        return flying or device in self.engine.idle

    def _take_job(self, number: int, content: object, now: float) -> None:
        flight = self.engine.flights.get(number)
        if flight is not None and isinstance(content, Result):
            self.seen[flight.device] = time.time()
        if isinstance(content, Result):
            self._give(Arrived(now, number, content.weights, content.seconds, content.joules, content.loss))
        elif isinstance(content, Trouble) and content.reason == "unknown":
            if flight is not None and not flight.abandoned:
                self.engine.unsent.append(number)  # its answer was lost with an earlier server: once more
        elif flight is not None:
            self.warn(f"device {flight.device}: job {number} lost: {_text(content)}")
            self._give(Failed(now, number, _reason(content)))

    def _close_question(self, now: float) -> None:
        question = self.engine.question
        if question is None or self.engine.asking:
            return
        late = question.until is not None and now >= question.until
        if self._questions and not late:
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
