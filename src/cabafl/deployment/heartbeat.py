"""Signs of life, sent beside the work."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)


@contextmanager
def every(seconds: float, call: Callable[[], object]) -> Iterator[None]:
    """Repeats a call in a thread; one that fails is only logged, the work itself will meet the reason."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(seconds):
            try:
                call()
            except Exception as error:
                if not stop.is_set():
                    _log.warning("a sign of life failed: %r", error)

    threading.Thread(target=repeat, daemon=True).start()
    try:
        yield
    finally:
        stop.set()
