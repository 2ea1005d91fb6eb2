"""Jobs on persistent worker processes.

Data are mapped once for all workers, weights travel through reused shared memory. Each worker has two places: while it
trains one model the next is already waiting for it. Jobs that the clock needs first are started first.
"""

import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import numpy.typing as npt

from cabafl.execution.arena import Arena, Place, anonymous_file
from cabafl.execution.base import TrainJob
from cabafl.execution.queued import PLACES, QueuedExecutor, Warn
from cabafl.execution.sharing import arrays_of, share
from cabafl.learning.task import Task, Trained


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    places: list[Place] = field(default_factory=list)  # free ones
    tickets: dict[int, Place] = field(default_factory=dict)  # jobs it has
    ready: bool = False


class ProcessExecutor(QueuedExecutor):
    """`Executor` on ``workers`` processes. They start importing at once; `load` gives them the task."""

    def __init__(self, workers: int, warn: Warn | None = None) -> None:
        super().__init__("worker process", "worker processes", warn)
        self._wanted = workers
        self._workers: list[_Worker] = []
        self._data: Arena | None = None
        self._exchange = anonymous_file(0)
        self._data_file = anonymous_file(0)
        for _ in range(workers):
            self._workers.append(self._start())

    def _start(self) -> _Worker:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        descriptors = (theirs.fileno(), self._exchange, self._data_file)
        command = [sys.executable, "-m", "cabafl.execution.worker", str(theirs.fileno()), str(os.getpid())]
        process = subprocess.Popen(command, pass_fds=descriptors, env=environment, stdin=subprocess.DEVNULL)
        theirs.close()
        return _Worker(process, Connection(ours.detach()))

    def load(self, task: Task) -> None:
        """Shares the task's data and tells every worker how to build the task."""
        super().load(task)
        self._spec, self._processor, self._weights = task.spec, str(task.processor), task.model.layout.size
        self._data, self._places = Arena.of(arrays_of(task), self._data_file)
        share(task, {name: self._data.array(place) for name, place in self._places.items()})
        size = self._stride * PLACES * self._wanted
        os.ftruncate(self._exchange, size)
        self._shared = Arena(self._exchange, size)
        for index, worker in enumerate(self._workers):
            self._introduce(worker, index)

    @property
    def _stride(self) -> int:
        return -(-4 * self._weights // 64) * 64

    def _introduce(self, worker: _Worker, index: int) -> None:
        assert self._data is not None
        worker.places = [Place((PLACES * index + i) * self._stride, (self._weights,), "<f4") for i in range(PLACES)]
        exchange = (self._exchange, self._shared.size)
        data = (self._data_file, self._data.size)
        self._send(worker, (sys.path, self._spec, self._processor, data, self._places, exchange))

    def close(self) -> None:
        """Ends the workers at once."""
        for worker in self._workers:
            worker.connection.close()
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
        self._workers.clear()
        os.close(self._exchange)
        os.close(self._data_file)

    # Inside

    def _feed(self) -> None:
        """Gives waiting jobs to workers with a free place, the least busy first."""
        while self._waiting:
            worker = max(self._workers, key=lambda w: len(w.places))
            if not worker.places:
                return
            chosen = self._next()
            if chosen is None:
                return
            ticket, job = chosen
            place = worker.places.pop()
            np.copyto(self._view(place), job.weights)
            worker.tickets[ticket] = place
            self._send(worker, (ticket, job._replace(weights=_NOTHING), place))

    def _view(self, place: Place) -> npt.NDArray[Any]:
        return self._shared.array(place)

    def _send(self, worker: _Worker, message: Any) -> None:
        with contextlib.suppress(OSError):  # it died; the pump will see it
            worker.connection.send(message)

    def _pump(self, timeout: float) -> None:
        """Takes in what has arrived, waiting up to ``timeout`` for something."""
        connections = {worker.connection: worker for worker in self._workers}
        for connection in wait(list(connections), timeout):
            worker = connections[connection]  # type: ignore[index]
            try:
                ticket, result = worker.connection.recv()
            except (EOFError, OSError):
                self._replace(worker)
                continue
            if ticket == "ready":
                worker.ready = True
            else:
                self._take(worker, ticket, result)
        self._feed()

    def _take(self, worker: _Worker, ticket: int, result: Any) -> None:
        place = worker.tickets.pop(ticket)
        worker.places.append(place)
        if isinstance(self._jobs.get(ticket), TrainJob) and not isinstance(result, Exception):
            result = Trained(self._view(place).copy(), result)
        self._finish(ticket, result)

    def _replace(self, dead: _Worker) -> None:
        """A new worker in the place of a dead one; its jobs start again, with the same result."""
        index = self._workers.index(dead)
        dead.connection.close()
        code = dead.process.wait()
        self._lose(dead.tickets, dead.ready, f"code {code}")
        worker = self._start()
        self._workers[index] = worker
        self._introduce(worker, index)


_NOTHING = np.zeros(0, dtype=np.float32)
