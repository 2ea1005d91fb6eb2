"""SIGINT and SIGTERM stop a run between two events."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopped(BaseException):
    """Raised after SIGINT or SIGTERM. The run can be resumed."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


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
