"""Makes a process end with its parent."""

import contextlib
import ctypes
import os
import signal
import threading
import time

PARENT = "CABAFL_PARENT"  # environment variable: the `cabafl` command ends with the process of this ID
PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Makes this process receive signal ``number`` as soon as its parent, process ``parent``, is gone."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only; elsewhere the thread below does it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, daemon=True).start()
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
