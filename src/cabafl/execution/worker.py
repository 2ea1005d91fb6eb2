"""Starts a worker process: ``python -m cabafl.execution.worker DESCRIPTOR PARENT``.

Not forked: torch's threads and GPU contexts do not survive a fork. Not started by multiprocessing either, which would
import the caller's main module again.
"""

import contextlib
import gc
import os
import signal
import sys
from multiprocessing.connection import Connection

from cabafl.processes.lifeline import die_with_parent


def main() -> None:
    """Ends when the connection closes, or at once when the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C and then closes the connection
    die_with_parent(int(sys.argv[2]))
    gc.set_threshold(10_000)  # as `cabafl.cli.main`
    from cabafl.execution.pool import serve  # here, because importing torch is slow

    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(Connection(int(sys.argv[1])))
    os._exit(0)


if __name__ == "__main__":
    main()
