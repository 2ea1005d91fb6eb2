"""A worker process: builds the task once, then runs jobs until its connection closes. `pool.py` is the other end.

Started as ``python -m cabafl.execution.worker DESCRIPTOR PARENT``. Not forked: torch's threads and GPU contexts do not
survive a fork. Not started by multiprocessing either, which would import the caller's main module again.
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
    """Receives the task, then jobs. Replies (ticket, result); trained weights go back in the job's buffer."""
    import numpy as np  # here, because `main` must set up signals before these slow imports
    import torch

    from cabafl.execution.arena import Arena
    from cabafl.execution.base import TrainJob, run_job
    from cabafl.execution.task_arrays import build_task

    torch.set_num_threads(1)
    path, spec, processor, data, regions, weights = connection.recv()
    sys.path[:] = path
    arena, buffers = Arena(*data), Arena(*weights)
    task = build_task(spec, processor, {name: arena.array(region) for name, region in regions.items()})
    connection.send(("ready", None))
    while True:
        ticket, job, region = connection.recv()
        buffer = buffers.array(region)
        job = job._replace(weights=buffer)
        try:
            result: Any = run_job(task, job)
        except Exception:
            connection.send((ticket, RuntimeError(traceback.format_exc())))
            continue
        if isinstance(job, TrainJob):
            np.copyto(buffer, result.weights)
            result = result.loss
        connection.send((ticket, result))


def main() -> None:
    """Entry point; ends when the connection closes, or at once when the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C and then closes the connection
    die_with_parent(int(sys.argv[2]))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(Connection(int(sys.argv[1])))
    os._exit(0)


if __name__ == "__main__":
    main()
