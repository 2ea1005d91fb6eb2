"""The device process. It stays resident, with torch, data and model in memory, and answers messages.

Flower itself would start a new Python process for every message.
"""

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from flwr.app import Context, Error, Message, RecordDict

from cabafl.deployment.flower.internals import RETRY_CAP, DeviceConnection, Halted, Link, Refused, Retrier
from cabafl.deployment.heartbeat import every
from cabafl.deployment.wire import TRAIN
from cabafl.errors import UserError

Handler = Callable[[Message, Context], Message]
NodeConfig = dict[str, bool | float | int | str]

STOP_CHECK_INTERVAL = 0.2  # seconds
SHUTDOWN_TIMEOUT = 10.0  # seconds to finish an answer that is not a training
BACK_OFF = 20  # the pause between polls is the time since the last message divided by this
HANDLER_FAILED = 2  # Flower's error code of a reply
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Polling:
    """How often a device asks for messages, in seconds: every ``busy`` right after a message, then more and more rarely
    up to every ``idle``, and every ``idle`` during a training.

    Each request costs the SuperLink more than 10 ms, and it serves all devices on one core.
    """

    busy: float = 0.2
    idle: float = 1.0


def serve(
    link: Link,
    handler: Handler,
    *,
    private_key: Path | None = None,
    node_config: NodeConfig | None = None,
    heartbeat: float = 30.0,
    polling: Polling | None = None,
    retrier: Retrier | None = None,
) -> None:
    """Answers messages until SIGTERM, SIGINT or ``retrier.stop``; acts as a SuperNode with the client app ``handler``.

    The SuperLink counts the device as lost after twice ``heartbeat`` seconds without a heartbeat; the minimum is 10.
    """
    retrier = retrier or Retrier()
    connection = DeviceConnection(link, private_key, heartbeat, retrier)
    device = _Device(connection, handler, node_config or {}, polling or Polling(), retrier.stop)
    try:
        with device.signals(), every(heartbeat / 3, connection.beat):
            device.connect()
            device.answer_all()
    except Halted:
        pass
    finally:
        connection.close()


class _Device:
    """Uses two threads. The main thread trains, so that a signal can interrupt a training; the receiver thread polls
    for messages and answers all others, so that a device reports features during a training."""

    def __init__(
        self,
        connection: DeviceConnection,
        handler: Handler,
        node_config: NodeConfig,
        polling: Polling,
        stop: threading.Event,
    ) -> None:
        self.connection = connection
        self.handler = handler
        self.node_config = node_config
        self.polling = polling
        self.stop = stop
        self.trainings: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.training = False
        self.failure: BaseException | None = None  # of the receiver thread
        self._connecting = threading.Lock()

    def connect(self) -> None:
        """Goes online. After a crash the SuperLink refuses the device until it has noticed missing heartbeats."""
        deadline = time.monotonic() + 2 * self.connection.heartbeat + 4 * RETRY_CAP
        while True:
            try:
                self.connection.connect()
            except Refused as refused:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"the SuperLink refuses this device (status {refused.status}): its key is not registered, its "
                        "clock is wrong, or another device with the same key is connected"
                    ) from None
                _log.warning("not admitted yet: %s", refused)
                if self.stop.wait(RETRY_CAP):
                    raise Halted from None
            else:
                _log.info("connected as node %d", self.connection.node_id)
                return

    def answer_all(self) -> None:
        """Answers messages until stopped; raises what made the receiver thread fail."""
        receiver = threading.Thread(target=self._receive_all, daemon=True)
        receiver.start()
        while not self.stop.is_set():
            with suppress(queue.Empty):
                message = self.trainings.get(timeout=STOP_CHECK_INTERVAL)
                try:
                    self.training = True
                    reply, seconds = self._handle(message)
                finally:
                    self.training = False
                self._send(reply, seconds)
        receiver.join(SHUTDOWN_TIMEOUT)
        if self.failure is not None:
            raise self.failure

    def _receive_all(self) -> None:
        try:
            last = time.monotonic()
            pause = 0.0
            while not self.stop.wait(pause):
                if self._receive():
                    last, pause = time.monotonic(), 0.0
                elif self.training:
                    pause = self.polling.idle
                else:
                    pause = min(max(self.polling.busy, (time.monotonic() - last) / BACK_OFF), self.polling.idle)
        except Halted:
            pass
        except BaseException as failure:
            self.failure = failure
        finally:
            self.stop.set()

    def _receive(self) -> bool:
        """Asks for a message and handles it; returns False if there was none."""
        try:
            message = self.connection.receive(self.polling.busy)
        except Refused as refused:
            self._recover(refused)
            return True
        if message is None:
            return False
        if message.has_error():
            self._send(message, 0.0)
        elif message.metadata.message_type == TRAIN:
            self.trainings.put(message)
        else:
            self._send(*self._handle(message))
        return True

    def _send(self, reply: Message, seconds: float) -> None:
        try:
            if not self.connection.send(reply, seconds):
                _log.warning("a reply was dropped: the SuperLink does not store it")
        except Refused as refused:
            self._recover(refused)

    def _recover(self, refused: Refused) -> None:
        """Reconnects if the SuperLink has forgotten this device (401); otherwise, e.g. 403 after the end of the run,
        only logs."""
        if refused.status != 401:
            _log.warning("a message was dropped: %s", refused)
        elif self._connecting.acquire(blocking=False):
            try:
                self.connect()
            finally:
                self._connecting.release()

    def _handle(self, message: Message) -> tuple[Message, float]:
        """The handler's reply and the seconds it took. If the handler fails, the reply names only the exception's
        class: its text may be private."""
        context = Context(message.metadata.run_id, self.connection.node_id, self.node_config, RecordDict(), {})
        started = time.monotonic()
        try:
            reply = self.handler(message, context)
        except Halted:
            raise
        except Exception as error:
            _log.exception("the handler failed")
            reply = Message(Error(HANDLER_FAILED, type(error).__name__), reply_to=message)
        return reply, time.monotonic() - started

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Lets SIGTERM and SIGINT stop the device. Does nothing outside of the main thread, which gets all signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, action in before.items():
                signal.signal(number, action)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Aborts a training at once; everything else ends by itself soon."""
        self.stop.set()
        if self.training:
            raise Halted
