"""What stops a run between two events before its end: SIGINT, SIGTERM, or a time given in advance."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopped(KeyboardInterrupt):
    """Raised after SIGINT or SIGTERM. The run can be resumed."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of a traceback."""
        return ["Stopped: the run was interrupted between two of its events."]


class Paused(BaseException):
    """Raised when a simulation has reached the time it was to run until. The run can be resumed."""

    def __init__(self, time: float) -> None:
        super().__init__(time)
        self.time = time


@contextmanager
def signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Inside the context, SIGINT and SIGTERM call ``stop`` with their number. No effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda n, _frame: stop(n)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
