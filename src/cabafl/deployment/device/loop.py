"""The device side: a process that stays, with torch, data and model in memory, and answers messages.

Flower itself starts a new Python process for every message.
"""

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from flwr.app import Context, Error, Message, RecordDict

from cabafl.deployment.flower.internals import RETRY_CAP, DeviceConnection, Halted, Link, Patience, Refused
from cabafl.deployment.heartbeat import every
from cabafl.deployment.wire import TRAIN
from cabafl.errors import UserError

Handler = Callable[[Message, Context], Message]
NodeConfig = dict[str, bool | float | int | str]

NAP = 0.2  # seconds after which a waiting thread looks whether to stop
FAREWELL = 10.0  # seconds to end an answer that is not a training
HANDLER_FAILED = 2  # error code of a reply, as Flower numbers them
_log = logging.getLogger(__name__)


def serve(
    link: Link,
    handler: Handler,
    *,
    private_key: Path | None = None,
    node_config: NodeConfig | None = None,
    poll: float = 0.2,
    idle_poll: float = 1.0,
    heartbeat: float = 30.0,
    patience: Patience | None = None,
) -> None:
    """Answers messages until SIGTERM, SIGINT or ``patience.stop``; a SuperNode whose client app is ``handler``.

    Asks for messages every ``poll`` seconds after the last one and less often later or during a training, every
    ``idle_poll`` at the least: each question costs the SuperLink more than 10 ms, and it has one core to answer all.
    The SuperLink takes the device for lost when it has not heard of it for twice ``heartbeat`` seconds; 10 is the least
    it accepts.
    """
    patience = patience or Patience()
    device = _Device(DeviceConnection(link, private_key, heartbeat, patience), handler, node_config or {}, patience)
    try:
        with device.signals(), every(heartbeat / 3, device.connection.beat):
            device.connect()
            device.answer_all(poll, idle_poll)
    except Halted:
        pass
    finally:
        device.connection.close()


class _Device:
    """Two threads: the main one trains, which a signal can interrupt; the other fetches messages and answers all else,
    so that features are told while a training goes on."""

    def __init__(
        self, connection: DeviceConnection, handler: Handler, node_config: NodeConfig, patience: Patience
    ) -> None:
        self.connection = connection
        self.handler = handler
        self.node_config = node_config
        self.stop = patience.stop
        self.trainings: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.training = False
        self.failure: BaseException | None = None  # of the other thread
        self._connecting = threading.Lock()

    def connect(self) -> None:
        """A device that died without a word is refused until the SuperLink has missed it."""
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

    def answer_all(self, poll: float, idle_poll: float) -> None:
        """Until stopped."""
        receiver = threading.Thread(target=self._receive_all, args=(poll, idle_poll), daemon=True)
        receiver.start()
        while not self.stop.is_set():
            with suppress(queue.Empty):
                message = self.trainings.get(timeout=NAP)
                try:
                    self.training = True
                    reply, seconds = self._handle(message)
                finally:
                    self.training = False
                self._send(reply, seconds)
        receiver.join(FAREWELL)
        if self.failure is not None:
            raise self.failure

    def _receive_all(self, poll: float, idle_poll: float) -> None:
        try:
            last = time.monotonic()
            pause = 0.0
            while not self.stop.wait(pause):
                if self._receive(poll):
                    last, pause = time.monotonic(), 0.0
                elif self.training:
                    pause = idle_poll
                else:
                    pause = min(max(poll, (time.monotonic() - last) / 20), idle_poll)
        except Halted:
            pass
        except BaseException as failure:
            self.failure = failure
        finally:
            self.stop.set()

    def _receive(self, poll: float) -> bool:
        """Whether there was something to do."""
        try:
            message = self.connection.receive(poll)
        except Refused as refused:
            self._put_up_with(refused)
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
            self._put_up_with(refused)

    def _put_up_with(self, refused: Refused) -> None:
        if refused.status != 401:  # 403: the run has ended
            _log.warning("a message was dropped: %s", refused)
        elif self._connecting.acquire(blocking=False):  # a SuperLink that has forgotten this device
            try:
                self.connect()
            finally:
                self._connecting.release()

    def _handle(self, message: Message) -> tuple[Message, float]:
        """The handler's reply, or an error that says no more than the kind of exception; and the seconds it took."""
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
        """SIGTERM and SIGINT mean ``stop`` inside; outside of the main thread nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._signalled) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, action in before.items():
                signal.signal(number, action)

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        """Ends the training where it is; everything else ends by itself soon."""
        self.stop.set()
        if self.training:
            raise Halted
