"""Processes that end with the one that started them."""

import contextlib
import ctypes
import os
import signal
import threading
import time


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Sends this process a signal when its parent is gone, in the middle of whatever it does."""
    with contextlib.suppress(OSError, AttributeError):  # Linux; elsewhere the thread below has to do
        ctypes.CDLL(None).prctl(1, number)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, daemon=True).start()
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
