"""Starts worker processes. Does not load torch: they can start before this process loads it, and load it at the same
time."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path


def worker_count(setting: str | int) -> int:
    """The value of ``run.workers`` as a number; auto is one per core available to this process."""
    if isinstance(setting, int):
        return setting
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def anonymous_file() -> int:
    """A file descriptor of memory that child processes can inherit; grows with `os.ftruncate`. The memory has no name
    and is freed when the last process closes it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("cabafl")
    descriptor, path = tempfile.mkstemp(prefix="cabafl")  # other systems: an unlinked temporary file
    Path(path).unlink()
    return descriptor


class WorkerProcesses:
    """Processes that wait for a task, and the two files of memory that they share with this one."""

    def __init__(self, count: int) -> None:
        self.weights_file, self.data_file = anonymous_file(), anonymous_file()
        self.started = [self.start() for _ in range(count)]

    def start(self) -> tuple["subprocess.Popen[bytes]", Connection]:
        """One more process, and the connection to it."""
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        descriptors = (theirs.fileno(), self.weights_file, self.data_file)
        command = [sys.executable, "-P", "-m", "cabafl.execution.worker", str(theirs.fileno()), str(os.getpid())]
        process = subprocess.Popen(command, pass_fds=descriptors, env=environment, stdin=subprocess.DEVNULL)
        theirs.close()
        return process, Connection(ours.detach())

    def close(self, running: list[tuple["subprocess.Popen[bytes]", Connection]]) -> None:
        """Kills the processes and frees the memory."""
        for process, connection in running:
            connection.close()
            process.kill()
        for process, _ in running:
            process.wait()
        os.close(self.weights_file)
        os.close(self.data_file)


_early: list[WorkerProcesses] = []  # started, and not taken yet


@contextmanager
def early_workers(count: int) -> Iterator[None]:
    """Inside the context, ``count`` processes are there for the next that `take` them. The others are killed."""
    processes = WorkerProcesses(count)
    _early.append(processes)
    try:
        yield
    finally:
        if processes in _early:
            _early.remove(processes)
            processes.close(processes.started)


def take(count: int) -> WorkerProcesses:
    """``count`` processes: those that started early, or new ones. The caller closes them."""
    found = next((processes for processes in _early if len(processes.started) == count), None)
    if found is None:
        return WorkerProcesses(count)
    _early.remove(found)
    return found
