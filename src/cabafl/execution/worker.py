"""A worker process: builds the task once, then carries out jobs until its connection closes.

Started as ``python -m cabafl.execution.worker DESCRIPTOR``: no fork (torch's threads and GPUs would not survive it) and
no second import of the caller's main module.
"""

import contextlib
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from cabafl.processes.lifeline import die_with_parent


def serve(connection: Connection) -> None:
    """Receives the task, then jobs; each is answered with its ticket and result, weights through the arena."""
    import numpy as np
    import torch

    from cabafl.execution.arena import Arena
    from cabafl.execution.base import TrainJob
    from cabafl.execution.inline import carry_out
    from cabafl.execution.sharing import build_task

    torch.set_num_threads(1)
    path, spec, processor, data, places, exchange = connection.recv()
    sys.path[:] = path
    arena = Arena(*data)
    shared = Arena(*exchange)
    task = build_task(spec, processor, {name: arena.array(place) for name, place in places.items()})
    connection.send(("ready", None))
    while True:
        ticket, job, place = connection.recv()
        buffer = shared.array(place)
        job = job._replace(weights=buffer)
        try:
            result: Any = carry_out(task, job)
        except Exception:
            connection.send((ticket, RuntimeError(traceback.format_exc())))
            continue
        if isinstance(job, TrainJob):
            np.copyto(buffer, result.weights)
            result = result.loss
        connection.send((ticket, result))


def main() -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which then closes the connection
    die_with_parent(int(sys.argv[2]))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(Connection(int(sys.argv[1])))
    os._exit(0)


if __name__ == "__main__":
    main()
