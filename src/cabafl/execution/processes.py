"""Jobs on persistent worker processes.

Data are mapped once for all workers, weights travel through reused shared memory. Each worker has two places: while it
trains one model the next is already waiting for it. Jobs that the clock needs first are started first.
"""

import contextlib
import heapq
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
from cabafl.execution.base import ExecutorJob, Interrupt, TrainJob
from cabafl.execution.recipe import share, take_apart
from cabafl.learning.task import Task

PLACES = 2  # per worker
TRIES = 5  # a job that kills this many workers is at fault itself


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    places: list[Place] = field(default_factory=list)  # free ones
    tickets: dict[int, Place] = field(default_factory=dict)  # jobs it has
    ready: bool = False


class WorkersDie(RuntimeError):
    """A job has killed several workers."""


class ProcessExecutor:
    """`Executor` on ``workers`` processes. They start importing at once; `load` gives them the task."""

    def __init__(self, workers: int, warn: Any = None) -> None:
        self.warn = warn or (lambda text: None)
        self._wanted = workers
        self._workers: list[_Worker] = []
        self._waiting: list[tuple[float, int]] = []  # (due, ticket), earliest first
        self._jobs: dict[int, ExecutorJob] = {}  # all that are not finished, with their input weights
        self._due: dict[int, float] = {}
        self._tries: dict[int, int] = {}
        self._results: dict[int, Any] = {}
        self._tickets = 0
        self._failed_starts = 0
        self._data: Arena | None = None
        self.evaluation_chunks = 0
        self.feature_chunks: list[range] = []
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

    def load(self, task: Task, model: str) -> None:
        """Shares the task's data and tells every worker how to build the task."""
        self.evaluation_chunks = task.evaluation_chunks
        self.feature_chunks = task.feature_chunks()
        self._recipe, arrays = take_apart(task, model)
        self._data, self._places = Arena.of(arrays, self._data_file)
        share(task, {name: self._data.array(place) for name, place in self._places.items()})
        size = self._stride * PLACES * self._wanted
        os.ftruncate(self._exchange, size)
        self._shared = Arena(self._exchange, size)
        for index, worker in enumerate(self._workers):
            self._introduce(worker, index)

    @property
    def _stride(self) -> int:
        return -(-4 * self._recipe.weights // 64) * 64

    def _introduce(self, worker: _Worker, index: int) -> None:
        assert self._data is not None
        worker.places = [
            Place((PLACES * index + i) * self._stride, (self._recipe.weights,), "<f4") for i in range(PLACES)
        ]
        exchange = (self._exchange, self._shared.size)
        data = (self._data_file, self._data.size)
        self._send(worker, (sys.path, self._recipe, data, self._places, exchange))

    # The executor's interface

    def submit(self, job: ExecutorJob, due: float = 0.0) -> int:
        """Queues the job; the earlier it is due the sooner it starts."""
        self._tickets += 1
        ticket = self._tickets
        self._jobs[ticket] = job
        self._due[ticket] = due
        heapq.heappush(self._waiting, (due, ticket))
        self._feed()
        return ticket

    def done(self, ticket: int) -> bool:
        """Whether `result` would not wait."""
        if ticket not in self._results:
            self._pump(0.0)
        return ticket in self._results

    def result(self, ticket: int, interrupt: Interrupt | None = None) -> Any:
        """Waits for one job while all others go on."""
        while ticket not in self._results:
            if interrupt is not None:
                interrupt()
            self._pump(0.5)
        result = self._results.pop(ticket)
        if isinstance(result, Exception):
            raise result
        return result

    def discard(self, ticket: int) -> None:
        """Forgets a job; one that is already running is finished for nothing."""
        self._jobs.pop(ticket, None)
        self._due.pop(ticket, None)
        self._results.pop(ticket, None)

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
            _, ticket = heapq.heappop(self._waiting)
            job = self._jobs.get(ticket)
            if job is None:
                continue  # discarded
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
        self._tries.pop(ticket, None)
        job = self._jobs.pop(ticket, None)
        if job is None:
            return  # discarded meanwhile
        del self._due[ticket]
        if isinstance(job, TrainJob) and result is None:
            result = self._view(place).copy()
        self._results[ticket] = result

    def _replace(self, dead: _Worker) -> None:
        """A new worker in the place of a dead one; its jobs start again, with the same result."""
        index = self._workers.index(dead)
        dead.connection.close()
        code = dead.process.wait()
        self._failed_starts = 0 if dead.ready else self._failed_starts + 1
        if self._failed_starts >= TRIES:
            raise WorkersDie(f"{TRIES} worker processes in a row ended before their first job (code {code})")
        self.warn(f"a worker process died (code {code}); a new one takes over its {len(dead.tickets)} jobs")
        for ticket in dead.tickets:
            self._tries[ticket] = self._tries.get(ticket, 0) + 1
            if self._tries[ticket] >= TRIES:
                raise WorkersDie(f"a job was lost with {TRIES} worker processes (the last ended with code {code})")
            if ticket in self._jobs:
                heapq.heappush(self._waiting, (self._due[ticket], ticket))
        worker = self._start()
        self._workers[index] = worker
        self._introduce(worker, index)


_NOTHING = np.zeros(0, dtype=np.float32)
