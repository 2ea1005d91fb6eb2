"""The device process. It stays connected and resident, with torch, data and model in memory, from run to run."""

import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from cabafl.deployment.device.session import (
    Action,
    Complain,
    Describe,
    Fetch,
    Finish,
    Join,
    Leave,
    Publish,
    Session,
    Stop,
    Train,
)
from cabafl.deployment.device.terms import AgainstTerms, tellable
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.log import Log
from cabafl.deployment.messages import FeatureQuery, FeatureReply, TrainingJob, TrainingReply
from cabafl.deployment.mqtt.link import Account, Connected, Disconnected, Link, Packet, Will
from cabafl.errors import UserError

READY_INTERVAL = 5.0  # seconds between two looks at the device's own conditions
WILL_DELAY = 10  # seconds without connection after which a device counts as gone
SHORT_CONNECTION, MANY_SHORT = 20.0, 4  # seconds; this many in a row are suspicious


class Worker(Protocol):
    """What computes on a device; see `participant.Participant`."""

    def join(self, greeting: Greeting) -> int:
        """Gets ready for a run; returns the number of samples, or raises `UserError`."""

    def leave(self) -> None:
        """The run is over."""

    def train(
        self, job: TrainingJob, cancelled: Callable[[], bool], finishing: Callable[[], bool]
    ) -> TrainingReply | None:
        """None: cancelled. ``finishing``: whether to end after the running epoch."""

    def features(self, query: FeatureQuery) -> FeatureReply:
        """Raises `UserError` if the device refuses."""

    def ready(self) -> str | None:
        """None, or why the device does not train now."""


class DeviceLoop:
    """Uses two threads. The main thread joins and trains; the listener takes packets and answers feature queries, so
    that a device reports features while it trains."""

    def __init__(self, device: int, account: Account, worker: Worker, log: Log) -> None:
        self.session = Session(device, secrets.token_hex(8))
        self.worker = worker
        self.log = log
        will = self.session.absence()
        self.link = Link(account, Will(will.topic, will.payload, WILL_DELAY))
        self.stop = threading.Event()
        self._tasks: queue.SimpleQueue[Join | Leave | Train | None] = queue.SimpleQueue()
        self._wanted: Join | Train | None = None  # the newest task; anything older is cancelled
        self._finishing = -1  # the last job that was to end after the running epoch
        self._lock = threading.Lock()  # of the session: both threads use it
        self._failure: BaseException | None = None
        self._connected: float | None = None  # since when
        self._short = 0  # short connections in a row
        self._slow = False  # waits longer before it connects again

    def run(self) -> None:
        """Takes part until SIGTERM, SIGINT or ``stop``."""
        listener = threading.Thread(target=self._listen, daemon=True)
        with self._signals():
            self.link.open()
            listener.start()
            try:
                self._work()
            finally:
                self.stop.set()
                self.link.wake()
                listener.join(5.0)
                gone = self.session.absence()
                self.link.close((gone.topic, gone.payload))
        if self._failure is not None:
            raise self._failure

    # The main thread

    def _work(self) -> None:
        looked = 0.0
        while not self.stop.is_set():
            if time.monotonic() - looked > READY_INTERVAL:
                looked = time.monotonic()
                self._look()
            try:
                task = self._tasks.get(timeout=READY_INTERVAL)
            except queue.Empty:
                continue
            if isinstance(task, Leave):
                self.worker.leave()
            elif isinstance(task, Join) and task is self._wanted:
                self._join(task)
            elif isinstance(task, Train) and task is self._wanted:
                self._train(task)
            elif isinstance(task, Train):
                self._say_cancelled(task.job)

    def _look(self) -> None:
        reason = self.worker.ready()
        self._do(lambda session: session.set_ready(reason is None))
        if reason is not None:
            self.log.warn(f"does not train now: {reason}")

    def _join(self, task: Join) -> None:
        try:
            greeting = Greeting.read(task.greeting)
            samples = self.worker.join(greeting)
        except Exception as error:  # also one of the owner's loader: the device waits for another run
            self.log.warn(f"does not take part: {error if isinstance(error, UserError) else repr(error)}")
            text = tellable(error)
            self._do(lambda session: session.decline(text) if session.run == task.run else [])
        else:
            self.log.info("joins a run", samples=samples, model=greeting.task.model)
            self._do(lambda session: session.joined(task.run, greeting.weights, samples))

    def _train(self, task: Train) -> None:
        job = task.job
        try:
            reply = self.worker.train(
                job,
                lambda: self._wanted is not task or self.stop.is_set(),
                lambda: self._finishing == job.number,
            )
        except Exception as error:
            self.log.warn(f"job {job.number} fails: {error!r}")
            text, declines = tellable(error), isinstance(error, AgainstTerms)
            self._do(lambda session: session.fail(job.number, "declined" if declines else "crash", text))
            if declines:
                self._look()
            return
        if reply is None:
            self._say_cancelled(job)
            return
        self.log.info(f"job {job.number}", seconds=round(reply.seconds, 2), joules=round(reply.joules, 1))
        self._do(lambda session: session.answer(job.number, reply, job.objective.hold))

    def _say_cancelled(self, job: TrainingJob) -> None:
        self.log.info(f"job {job.number} is cancelled")
        if not self.stop.is_set():
            self._do(lambda session: session.fail(job.number, "cancelled", "cancelled"))

    # The listener

    def _listen(self) -> None:
        try:
            while not self.stop.is_set():
                item = self.link.incoming.get()
                if isinstance(item, Packet):
                    self._do(lambda session, item=item: session.take(item.topic, item.payload))  # type: ignore[misc]
                elif isinstance(item, Connected):
                    self._connect()
                elif isinstance(item, Disconnected):
                    self._disconnect(item)
        except BaseException as failure:
            self._failure = failure
            self.stop.set()
            self._tasks.put(None)

    def _connect(self) -> None:
        self.log.info("connected")
        self._connected = time.monotonic()
        self.link.subscribe(*self.session.subscriptions)
        self._do(lambda session: session.connected(self.link.packet_limit))

    def _disconnect(self, lost: Disconnected) -> None:
        """Some brokers do not tell a client that another one has taken its place: then connections are short."""
        self.log.warn(lost.text)
        if self._connected is not None:
            short = time.monotonic() - self._connected < SHORT_CONNECTION
            self._short = self._short + 1 if short else 0
            self.link.slow_down(short and self._slow)
            self._slow = short and self._slow
        self._connected = None
        if lost.taken_over or self._short >= MANY_SHORT:
            self._short = 0
            self.log.warn("the broker ends each connection soon: another process may use this device's certificate")
            self._slow = True
            self.link.slow_down()

    # Both

    def _do(self, ask: Callable[[Session], list[Action]]) -> None:
        """Messages leave in the order in which the session makes them: the last presence counts."""
        with self._lock:
            actions = ask(self.session)
            for action in actions:
                if isinstance(action, Publish):
                    self.link.publish(action.topic, action.payload, action.retain)
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        if isinstance(action, Fetch):
            pieces = f"{action.topic}/+"
            (self.link.subscribe if action.on else self.link.unsubscribe)(pieces)
        elif isinstance(action, Join | Train):
            self._wanted = action
            self._tasks.put(action)
        elif isinstance(action, Leave):
            self._wanted = None
            self._tasks.put(action)
        elif isinstance(action, Stop):
            if isinstance(self._wanted, Train) and self._wanted.job.number <= action.job:
                self._wanted = None
        elif isinstance(action, Finish):
            self._finishing = action.job
        elif isinstance(action, Describe):
            self._describe(action.query)
        elif isinstance(action, Complain):
            self.log.warn(action.text)

    def _describe(self, query: FeatureQuery) -> None:
        try:
            reply = self.worker.features(query)
        except Exception as error:
            self.log.warn(f"a feature query is not answered: {error}")
            text = tellable(error)
            self._do(lambda session: session.refuse(query.number, text))
        else:
            self._do(lambda session: session.describe(query.number, reply))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop the device after the current batch; tests may run it in another thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def halt(number: int, frame: FrameType | None) -> None:
            self.stop.set()
            self._tasks.put(None)

        before = {number: signal.signal(number, halt) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
