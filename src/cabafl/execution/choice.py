"""Which executor an experiment asks for."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Protocol

from cabafl.config import Experiment, RunSection
from cabafl.errors import RunStopped, UserError
from cabafl.execution.base import Executor
from cabafl.execution.inline import inline_executor
from cabafl.execution.pool import ProcessExecutor
from cabafl.execution.queued import QueuedExecutor, Warn, WorkersDie
from cabafl.execution.ray_cluster import open_ray
from cabafl.learning.task import Task


class Workers(Protocol):
    """Started before the data are read; becomes an executor when the task is there."""

    def for_task(self, task: Task) -> Executor:
        """The executor of one run."""


class _Inline:
    def for_task(self, task: Task) -> Executor:
        return inline_executor(task)


class _Queued:
    def __init__(self, executor: QueuedExecutor) -> None:
        self._executor = executor

    def for_task(self, task: Task) -> Executor:
        self._executor.load(task)
        return self._executor


def worker_count(setting: str | int) -> int:
    """The number behind ``run.workers``: auto is one per core this process may use."""
    if isinstance(setting, int):
        return setting
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def open_executor(experiment: Experiment, warn: Warn | None = None) -> Iterator[Workers]:
    """Starts what will carry out the jobs and ends it, whatever happens."""
    run = experiment.run
    if run.executor == "local" and worker_count(run.workers) == 0:
        yield _Inline()
        return
    try:
        with _open_queued(run, warn) as executor:
            yield _Queued(executor)
    except WorkersDie as error:
        raise RunStopped(str(error)) from None


def _open_queued(run: RunSection, warn: Warn | None) -> AbstractContextManager[QueuedExecutor]:
    if run.executor == "ray":
        return open_ray(run.workers, worker_count("auto"), run.ray_address, run.device, warn)
    if run.ray_address is not None:
        raise UserError(f"run.ray_address = {run.ray_address!r}: needs run.executor = 'ray', not {run.executor!r}")
    return closing(ProcessExecutor(worker_count(run.workers), warn))
