"""The device side: a process that stays, with torch, data and model in memory, and answers messages.

Flower itself starts a new Python process for every message.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from flwr.app import Context, Error, Message, RecordDict

from cabafl.deployment.beat import every
from cabafl.deployment.flower_internals import RETRY_CAP, DeviceConnection, Link, Patience, Refused, Stopped
from cabafl.errors import UserError

Handler = Callable[[Message, Context], Message]
NodeConfig = dict[str, bool | float | int | str]

HANDLER_FAILED = 2  # error code of a reply, as Flower numbers them
_log = logging.getLogger(__name__)


def serve(
    link: Link,
    handler: Handler,
    *,
    private_key: Path | None = None,
    node_config: NodeConfig | None = None,
    poll: float = 0.1,
    idle_poll: float = 0.5,
    heartbeat: float = 30.0,
    patience: Patience | None = None,
) -> None:
    """Answers messages until SIGTERM, SIGINT or ``patience.stop``; a SuperNode whose client app is ``handler``.

    Asks for messages every ``poll`` seconds after the last one and less often later, every ``idle_poll`` at the least.
    The SuperLink takes the device for lost when it has not heard of it for twice ``heartbeat`` seconds; 10 is the least
    it accepts.
    """
    patience = patience or Patience()
    device = _Device(DeviceConnection(link, private_key, heartbeat, patience), handler, node_config or {}, patience)
    try:
        with device.signals(), every(heartbeat / 3, device.connection.beat):
            device.connect()
            device.answer_all(poll, idle_poll)
    except Stopped:
        pass
    finally:
        device.connection.close()


class _Device:
    def __init__(
        self, connection: DeviceConnection, handler: Handler, node_config: NodeConfig, patience: Patience
    ) -> None:
        self.connection = connection
        self.handler = handler
        self.node_config = node_config
        self.stop = patience.stop
        self.handling = False

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
                    raise Stopped from None
            else:
                _log.info("connected as node %d", self.connection.node_id)
                return

    def answer_all(self, poll: float, idle_poll: float) -> None:
        """Until stopped."""
        last = time.monotonic()
        pause = 0.0
        while not self.stop.wait(pause):
            if self._answer(poll):
                last, pause = time.monotonic(), 0.0
            else:
                pause = min(max(poll, (time.monotonic() - last) / 20), idle_poll)

    def _answer(self, poll: float) -> bool:
        """Whether there was something to do."""
        try:
            message = self.connection.receive(poll)
            if message is None:
                return False
            started = time.monotonic()
            reply = message if message.has_error() else self._handle(message)
            if not self.connection.send(reply, time.monotonic() - started):
                _log.warning("a reply was dropped: the SuperLink does not store it")
        except Refused as refused:
            if refused.status == 401:  # a SuperLink that has forgotten this device
                self.connect()
            else:  # 403: the run has ended
                _log.warning("a message was dropped: %s", refused)
        return True

    def _handle(self, message: Message) -> Message:
        """The handler's reply, or an error that says no more than the kind of exception."""
        context = Context(message.metadata.run_id, self.connection.node_id, self.node_config, RecordDict(), {})
        try:
            self.handling = True
            return self.handler(message, context)
        except Stopped:
            raise
        except Exception as error:
            _log.exception("the handler failed")
            return Message(Error(HANDLER_FAILED, type(error).__name__), reply_to=message)
        finally:
            self.handling = False

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
        """Ends the handler where it is; everything else ends by itself soon."""
        self.stop.set()
        if self.handling:
            raise Stopped
