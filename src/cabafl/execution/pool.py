"""Jobs on persistent worker processes: both ends of the connection, and the shared memory between them.

Samples lie in shared memory that all workers map. Weights travel through shared buffers, two per worker: while it
trains in one, its next model waits in the other. Each has room for a correction beside the model. Everything else goes
through a socket.
"""

import contextlib
import mmap
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from cabafl.errors import UserError
from cabafl.execution.base import (
    JOBS_PER_WORKER,
    NO_WEIGHTS,
    QueuedExecutor,
    TrainJob,
    Warn,
    run_job,
    without_vectors,
)
from cabafl.execution.starting import take
from cabafl.execution.task_arrays import arrays_of, build_task, use_arrays
from cabafl.learning.task import Task

ALIGNMENT = 64  # bytes

# Shared memory


def aligned(size: int) -> int:
    """``size`` in bytes, rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Region(NamedTuple):
    """Where an array lies in an arena."""

    offset: int  # bytes
    shape: tuple[int, ...]
    dtype: str


class Arena:
    """Memory mapped by every process that has the descriptor; a `Region` locates an array in it."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size
        self._map = mmap.mmap(descriptor, max(size, 1))

    @classmethod
    def create(cls, descriptor: int, size: int) -> "Arena":
        """Sizes the file to ``size`` bytes and maps it."""
        os.ftruncate(descriptor, max(size, 1))
        return cls(descriptor, size)

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[np.generic]], descriptor: int) -> "tuple[Arena, dict[str, Region]]":
        """Copies arrays into the file behind ``descriptor``; returns the arena and each array's region."""
        regions, end = {}, 0
        for name, array in arrays.items():
            regions[name] = Region(end, array.shape, array.dtype.str)
            end += aligned(array.nbytes)
        arena = cls.create(descriptor, end)
        for name, array in arrays.items():
            arena.array(regions[name])[...] = array
        return arena, regions

    def array(self, region: Region) -> npt.NDArray[Any]:
        """A view of the shared memory: writes are visible to every process."""
        count = int(np.prod(region.shape, dtype=np.int64))
        view = np.frombuffer(self._map, dtype=np.dtype(region.dtype), count=count, offset=region.offset)
        return view.reshape(region.shape)


# In a worker process


def serve(connection: Connection) -> None:
    """The worker's end: receives the task, then jobs, until the connection closes. Replies (ticket, result); trained
    weights go back in the job's buffer."""
    torch.set_num_threads(1)
    path, spec, processor, data, regions, weights = connection.recv()
    sys.path[:] = path
    arena, buffers = Arena(*data), Arena(*weights)
    task = build_task(spec, processor, {name: arena.array(region) for name, region in regions.items()})
    connection.send(("ready", None))
    while True:
        ticket, job, region = connection.recv()
        buffer, correction = buffers.array(region)
        job = job._replace(weights=buffer)
        if isinstance(job, TrainJob) and job.correction is not None:
            job = job._replace(correction=correction)
        try:
            result: Any = run_job(task, job)
        except UserError as error:
            connection.send((ticket, UserError(str(error))))
            continue
        except Exception:
            connection.send((ticket, RuntimeError(traceback.format_exc())))
            continue
        if isinstance(job, TrainJob):
            np.copyto(buffer, result.weights)
            result = result._replace(weights=NO_WEIGHTS)
        connection.send((ticket, result))


# In the main process


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    free_buffers: list[Region] = field(default_factory=list)
    jobs: dict[int, Region] = field(default_factory=dict)  # ticket: buffer
    ready: bool = False


class ProcessExecutor(QueuedExecutor):
    """`Executor` on ``workers`` processes. They import torch while this process reads the data."""

    def __init__(self, workers: int, warn: Warn | None = None) -> None:
        super().__init__("worker process", "worker processes", warn)
        self._processes = take(workers)
        self._weights_file, self._data_file = self._processes.weights_file, self._processes.data_file
        self._workers = [_Worker(*started) for started in self._processes.started]

    def _load(self, task: Task) -> None:
        """Moves the task's samples to shared memory and tells every worker how to build the task."""
        self._spec, self._processor, self._model_size = task.spec, str(task.processor), task.model.layout.size
        self._data, self._regions = Arena.of(arrays_of(task), self._data_file)
        use_arrays(task, {name: self._data.array(region) for name, region in self._regions.items()})
        self._buffer_bytes = aligned(2 * task.model.layout.bytes)  # a correction is never touched if no job has one
        self._weights = Arena.create(self._weights_file, self._buffer_bytes * JOBS_PER_WORKER * len(self._workers))
        for index, worker in enumerate(self._workers):
            self._send_task(worker, index)

    def _send_task(self, worker: _Worker, index: int) -> None:
        first = JOBS_PER_WORKER * index
        worker.free_buffers = [
            Region(number * self._buffer_bytes, (2, self._model_size), "<f4")
            for number in range(first, first + JOBS_PER_WORKER)
        ]
        data, weights = (self._data_file, self._data.size), (self._weights_file, self._weights.size)
        self._send(worker, (sys.path, self._spec, self._processor, data, self._regions, weights))

    def close(self) -> None:
        """Kills the workers."""
        self._processes.close([(worker.process, worker.connection) for worker in self._workers])
        self._workers.clear()

    def _send_jobs(self) -> None:
        """Sends waiting jobs to workers with a free buffer, the least busy first."""
        while self._waiting:
            worker = max(self._workers, key=lambda w: len(w.free_buffers))
            if not worker.free_buffers:
                return
            chosen = self._next_job()
            if chosen is None:
                return
            ticket, job = chosen
            buffer = worker.free_buffers.pop()
            weights, correction = self._weights.array(buffer)
            np.copyto(weights, job.weights)
            if isinstance(job, TrainJob) and job.correction is not None:
                np.copyto(correction, job.correction)
            worker.jobs[ticket] = buffer
            self._send(worker, (ticket, without_vectors(job), buffer))

    def _send(self, worker: _Worker, message: Any) -> None:
        with contextlib.suppress(OSError):  # the worker died; `_receive` notices
            worker.connection.send(message)

    def _receive(self, timeout: float) -> None:
        workers = {worker.connection: worker for worker in self._workers}
        for connection in wait(list(workers), timeout):
            worker = workers[connection]  # type: ignore[index]
            try:
                ticket, result = worker.connection.recv()
            except (EOFError, OSError):
                self._replace(worker)
                continue
            if ticket == "ready":
                worker.ready = True
            else:
                self._take_result(worker, ticket, result)
        self._send_jobs()

    def _take_result(self, worker: _Worker, ticket: int, result: Any) -> None:
        buffer = worker.jobs.pop(ticket)
        worker.free_buffers.append(buffer)
        if isinstance(self._jobs.get(ticket), TrainJob) and not isinstance(result, Exception):
            result = result._replace(weights=self._weights.array(buffer)[0].copy())
        self._finish(ticket, result)

    def _replace(self, dead: _Worker) -> None:
        """Starts a new worker in place of a dead one and queues its jobs again."""
        index = self._workers.index(dead)
        dead.connection.close()
        code = dead.process.wait()
        self._requeue(dead.jobs, dead.ready, f"code {code}")
        worker = _Worker(*self._processes.start())
        self._workers[index] = worker
        self._send_task(worker, index)
