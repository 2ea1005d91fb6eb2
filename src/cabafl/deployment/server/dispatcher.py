"""Connects the network with the engine. News of devices becomes inputs, orders of the engine become messages.

Nothing leaves the server before the inputs behind it are on disk, and nothing is confirmed to the network before that.
A server killed at any moment therefore continues from its journal as if nothing had happened.
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from cabafl.deployment.log import Log, printable
from cabafl.deployment.messages import Declined, Described, Gone, Here, JobFailed, News, Nonsense, Ready, Trained
from cabafl.deployment.server.carrier import Carrier
from cabafl.engine.defence import MOST_SAMPLES
from cabafl.engine.inputs import Arrived, Failed, Gathered, Held, Input, Joined, Left, Passed, Started
from cabafl.engine.journal import Journal
from cabafl.engine.quarantine import AlarmFailed
from cabafl.engine.wall import WallEngine
from cabafl.errors import RunStopped

MAX_RESENDS = 3  # how often a job is sent again before it counts as lost
RECALL_AFTER = 300.0  # seconds after which a device is asked about its job, and again after as long
TIDY_INTERVAL = 5.0  # seconds
JOINS_PER_MINUTE = 6  # a device that joins more often is ignored until the minute is over
PAST_PROCESSES = 20  # of a device that are remembered
MAX_OFFENCES = 3  # inputs of a device that make the method fail, before the device is excluded from the run


class Quarantined(Exception):
    """The method failed at an input of a device, or at an alarm of the server (device None). That is marked beside the
    journal; the run restarts from its last checkpoint without it."""

    def __init__(self, text: str, device: int | None) -> None:
        super().__init__(text)
        self.device = device


class Dispatcher:
    """One run on one network. The run and its clock start when ``enough`` devices have joined; ``clock`` returns
    seconds. ``excluded`` devices take no part."""

    def __init__(
        self,
        engine: WallEngine,
        carrier: Carrier,
        journal: Journal,
        log: Log,
        *,
        enough: int,
        excluded: frozenset[int] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.carrier = carrier
        self.journal = journal
        self.log = log
        self.enough = enough
        self.excluded = excluded
        self.clock = clock
        self.seen: dict[int, float] = {}  # last news of each device, in seconds since the epoch
        self.faults: Counter[int] = Counter()  # refused messages and failed jobs, by device
        self.processes: dict[int, str] = {}  # of the devices that have joined
        self.declined: dict[int, str] = {}  # why a connected device does not take part
        self._connections = 0
        self._here: set[int] = set()  # devices that have said they are here on the present connection
        self._joins: dict[int, deque[float]] = {}
        self._past: dict[int, deque[str]] = {}  # earlier processes of each device
        self._resends: Counter[int] = Counter()  # by job
        self._recalled: dict[int, float] = {}  # job: when its device was last asked about it, on `clock`
        self._start: float | None = None  # on `clock`: where the run's time is 0
        self._tidied = self._last_upload = self.clock()
        self._rows: dict[int, npt.NDArray[np.float32]] = {}  # features by device
        self._silent: set[int] = set()  # devices that have not answered the query
        self._query = 0  # number of the last query
        self._unsent: list[int] = []  # jobs ordered by the engine
        self._doubtful: set[int] = set()  # jobs to ask their devices about
        self._asked: set[int] = set()  # jobs whose devices were asked since they were last sent
        self._cancelled: list[tuple[int, int]] = []  # jobs to stop, with their devices
        self._finishing: list[int] = []  # jobs to end after the running epoch
        self._fetching: list[int] = []  # jobs whose results devices are to upload
        self._asking = False  # the engine has ordered a feature collection that is not sent yet

    # The loop

    @property
    def started(self) -> bool:
        """Whether the run and its clock have started."""
        return self.engine.started

    def now(self) -> float:
        """Seconds since the run started, at most its length; 0 before."""
        if self._start is None:
            return 0.0
        limit = self.engine.limits.seconds
        return self.clock() - self._start if limit is None else min(self.clock() - self._start, limit)

    @property
    def since_upload(self) -> float:
        """Seconds since the last upload, or since this process started."""
        return self.clock() - self._last_upload

    def step(self, longest: float) -> bool:
        """Handles what has arrived and what is due; waits up to ``longest`` seconds for it. Returns whether anything
        happened."""
        before = self.journal.length
        wait = min(longest, self.engine.next_alarm() - self.now()) if self.started else longest
        deliveries = self.carrier.receive(max(0.0, wait))
        if self.carrier.connections != self._connections:
            self._connections = self.carrier.connections
            self._here = set()  # every device that is online says so again
        for number, delivery in enumerate(deliveries):
            try:
                self._take(delivery.news)
            except Quarantined:
                self.carrier.confirm(deliveries[: number + 1])  # the others are delivered again
                raise
        now = self.now()
        if not self.started and len(self.engine.present) >= self.enough:
            self._start = self.clock()
            self.give(Started(now))
        if self.engine.next_alarm() <= now:
            self.give(Passed(now))
        self._close_query(now)
        due = self.clock() - self._tidied >= TIDY_INTERVAL
        if due:
            self._drop_absent(now)
        self.journal.commit()
        self.carrier.confirm(deliveries)
        self.send_orders()
        if due:
            self._tidy()
        return self.journal.length > before

    def give(self, given: Input) -> None:
        """Journals an input and lets the engine handle it."""
        number = self.journal.add(given)
        self.replay(number, given)

    def replay(self, number: int, given: Input) -> None:
        """Handles an input that is in the journal. Raises `Quarantined` if a device's input makes the engine fail."""
        device = self._device_of(given)
        if isinstance(given, Joined):
            self.processes[given.device] = given.process
        try:
            self.engine.handle(given)
        except Exception as error:
            if device is None or isinstance(error, AlarmFailed | RunStopped | MemoryError | OSError):  # not its fault
                raise
            what = f"{type(error).__name__}: {error}"
            self.journal.commit()
            self.journal.quarantine.add_input(number, what, device)
            raise Quarantined(f"an input of device {device} made the run fail: {what}", device) from error
        orders = self.engine.take_orders()
        self._unsent += orders.jobs
        self._cancelled += orders.cancelled
        self._finishing += orders.finished
        self._fetching += orders.fetched
        self._asking = self._asking or orders.ask

    def _device_of(self, given: Input) -> int | None:
        """The device behind an input; None if it is the server's own."""
        if isinstance(given, Joined | Left):
            return given.device
        if isinstance(given, Arrived | Held | Failed):
            flight = self.engine.flights.get(given.job)
            return None if flight is None else flight.device
        if isinstance(given, Gathered):
            norms = np.abs(given.rows.astype(np.float64)).max(axis=1, initial=0.0)
            return int(norms.argmax()) if len(norms) else None
        return None

    def resume(self, now: float) -> None:
        """Continues the run at time ``now``, after a replay of the journal. Devices say again that they are here; each
        is then asked about its job."""
        if self.started:
            self._start = self.clock() - now
        self._unsent, self._doubtful, self._cancelled = [], set(), []
        flights = self.engine.flights
        self._finishing = [number for number, flight in flights.items() if flight.finishing]
        self._fetching = [number for number, flight in flights.items() if flight.fetched is not None]
        self.carrier.expect(list(flights.values()))
        self._recalled = dict.fromkeys(self.engine.flights, self.clock())
        self._asking = self.engine.question is not None
        for device in sorted(self.excluded & self.engine.present):
            self.give(Left(now, device))

    def send_orders(self) -> None:
        """Sends what the engine has ordered."""
        flights = [self.engine.flights[number] for number in self._unsent if number in self.engine.flights]
        for job, device in self._cancelled:
            self.carrier.cancel(device, job)
        known = self.engine.flights
        for number in sorted(job for job in self._doubtful if job in known and job not in self._unsent):
            self._recalled[number] = self.clock()
            self._asked.add(number)
            self.carrier.recall(known[number])
        self._unsent, self._cancelled, self._doubtful = [], [], set()
        if flights:
            self._asked -= {flight.number for flight in flights}
            self.carrier.send(flights)
            self._recalled.update((flight.number, self.clock()) for flight in flights)
        self._send_words()
        question = self.engine.question
        if self._asking and question is not None:
            self._query = max(self._query + 1, int(1000 * time.time()))  # never that of an earlier process
            self._silent = {int(device) for device in question.asked} & self.engine.present
            self._rows = {}
            self.carrier.ask(self._query, question.weights, question.kind, max(1.0, question.until - self.now()))
        self._asking = False

    def _send_words(self) -> None:
        """Tells devices to finish their jobs, or to upload the results that they hold."""
        flights = self.engine.flights
        for numbers, tell in ((self._finishing, self.carrier.finish), (self._fetching, self.carrier.fetch)):
            for number in dict.fromkeys(numbers):
                if number in flights:
                    tell(flights[number].device, number)
        self._finishing, self._fetching = [], []

    # News of devices

    def _take(self, news: News) -> None:
        device = news.device
        if device in self.excluded:
            return
        if not 0 <= device < len(self.engine.sizes):
            limit = f"the run takes {len(self.engine.sizes)} devices (data.devices, set when it starts)"
            self.log.warn(f"is not admitted: {limit}", device)
            return
        self.seen[device] = time.time()
        now = self.now()
        if isinstance(news, Here):
            self._take_here(news, now)
        elif isinstance(news, Trained | Ready | JobFailed):
            self._take_answer(news, now)
        elif isinstance(news, Described):
            self._take_features(news)
        elif isinstance(news, Nonsense) and device not in self.processes:  # an upload of the run before, for example
            self.log.warn(f"a message from before it joined this run is left out: {news.text}", device)
        elif isinstance(news, Nonsense):
            self._complain(device, f"a message is refused: {news.text}")
        else:
            self._take_absence(news, now)

    def _take_here(self, news: Here, now: float) -> None:
        device = news.device
        self._here.add(device)
        self.declined.pop(device, None)
        known = device in self.engine.present and self.processes.get(device) == news.process
        flight = self.engine.flight_of(device)
        if known and self.engine.defence.claimed[device] == min(news.samples, MOST_SAMPLES):
            if flight is not None:
                self._doubtful.add(flight.number)
            return
        if not self._may_join(device):
            self._complain(device, f"joins more than {JOINS_PER_MINUTE} times a minute; ignored for a while")
            return
        before = self.processes.get(device)
        past = self._past.setdefault(device, deque(maxlen=PAST_PROCESSES))
        if news.process in past:
            self._complain(device, "two processes take part with its certificate: is its key used twice?")
        elif before is not None and before != news.process:
            past.append(before)
        self.log.info("joins", device, samples=news.samples)
        self.give(Joined(now, device, news.samples, news.process))

    def _may_join(self, device: int) -> bool:
        """At most `JOINS_PER_MINUTE`: each one is a line of the journal and work for the method."""
        recent = self._joins.setdefault(device, deque())
        while recent and self.clock() - recent[0] > 60.0:
            recent.popleft()
        if len(recent) >= JOINS_PER_MINUTE:
            return False
        recent.append(self.clock())
        return True

    def _take_absence(self, news: Gone | Declined, now: float) -> None:
        device = news.device
        if isinstance(news, Gone) and news.process and news.process != self.processes.get(device, news.process):
            return  # an earlier process of the device
        self._here.discard(device)
        if isinstance(news, Gone) and not self.carrier.steady:
            return  # a broker that restarts reports every device as gone; `_drop_absent` follows
        if isinstance(news, Declined):
            self.declined[device] = printable(news.text)
            self.log.warn(f"does not take part: {news.text}", device)
        if device in self.engine.present:
            self._drop(device, now, "leaves")

    def _take_answer(self, news: Trained | Ready | JobFailed, now: float) -> None:
        flight = self.engine.flights.get(news.job)
        if flight is None:
            return  # answered before, cancelled or lost
        if flight.device != news.device:
            self._complain(news.device, f"answers job {news.job}, which another device has")
        elif isinstance(news, Trained):
            self._last_upload = self.clock()
            self.give(Arrived(now, news.job, *news.reply))
        elif isinstance(news, Ready):
            if flight.fetched is not None:
                self._fetching.append(news.job)  # it has not heard of it
            elif not flight.ready:
                self.give(Held(now, news.job, news.seconds, news.joules))
        elif news.reason == "unknown":
            if news.job in self._asked:  # not the answer to a question of before it was sent again
                self._asked.discard(news.job)
                self._send_again(news.job, flight.abandoned, now)
        else:
            self._complain(news.device, f"job lost: {news.text}")
            self.give(Failed(now, news.job, news.reason))

    def _send_again(self, number: int, abandoned: bool, now: float) -> None:
        """A job that did not reach its device."""
        self._resends[number] += 1
        if abandoned:
            self.give(Failed(now, number, "timeout"))
        elif self._resends[number] > MAX_RESENDS:
            self.give(Failed(now, number, "crash"))
        elif number not in self._unsent:
            self._unsent.append(number)
            if self.engine.flights[number].finishing:
                self._finishing.append(number)

    def _take_features(self, news: Described) -> None:
        if news.query != self._query or news.device not in self._silent:
            return
        self._silent.discard(news.device)
        if news.features is None:
            self._complain(news.device, f"no features: {news.text}")
        else:
            self._rows[news.device] = news.features

    def _complain(self, device: int, text: str) -> None:
        self.faults[device] += 1
        self.log.warn(text, device)

    # What is due

    def _close_query(self, now: float) -> None:
        """Ends a feature collection when all devices have answered or its time is up."""
        question = self.engine.question
        if question is None or self._asking or (self._silent and now < question.until):
            return
        width = len(next(iter(self._rows.values()))) if self._rows else 0
        table = np.zeros((len(self.engine.sizes), width), dtype=np.float32)
        answered = np.zeros(len(table), dtype=bool)
        for device, row in self._rows.items():
            table[device], answered[device] = row, True
        self._silent, self._rows = set(), {}
        self.give(Gathered(now, table, answered))

    def _drop_absent(self, now: float) -> None:
        """Devices that were removed, or did not come back."""
        for device in sorted(self.carrier.removed() - self.excluded):
            self.excluded |= {device}
            if device in self.engine.present:
                self._drop(device, now, "is removed from the fleet")
        if self.carrier.steady:
            for device in sorted(self.engine.present - self._here):
                self._drop(device, now, "leaves: it has not come back")

    def _drop(self, device: int, now: float, why: str) -> None:
        self._silent.discard(device)
        self.log.info(why, device)
        self.give(Left(now, device))

    def _tidy(self) -> None:
        """Frees what belongs to jobs that have ended, and asks about long ones."""
        clock, flights = self.clock(), self.engine.flights
        self._tidied = clock
        self.carrier.tidy(flights)
        self._resends = Counter({number: count for number, count in self._resends.items() if number in flights})
        self._recalled = {number: at for number, at in self._recalled.items() if number in flights}
        self._asked &= flights.keys()
        self._doubtful |= {number for number, at in self._recalled.items() if clock - at > RECALL_AFTER}

    # State

    def state(self) -> dict[str, Any]:
        """What a checkpoint stores besides the engine's state."""
        return {"processes": dict(self.processes)}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        self.processes = dict(state["processes"])
