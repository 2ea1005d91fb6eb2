"""Heartbeats, sent from a separate thread."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)


@contextmanager
def every(seconds: float, beat: Callable[[], object]) -> Iterator[None]:
    """Calls ``beat`` every ``seconds`` in a thread. Failures are only logged: the main work will fail for the same
    reason."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(seconds):
            try:
                beat()
            except Exception as error:
                if not stop.is_set():
                    _log.warning("a heartbeat failed: %r", error)

    threading.Thread(target=repeat, daemon=True).start()
    try:
        yield
    finally:
        stop.set()
