"""Which executor an experiment asks for."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from cabafl.config import Experiment
from cabafl.errors import RunStopped
from cabafl.execution.base import Executor
from cabafl.execution.inline import InlineExecutor
from cabafl.execution.processes import ProcessExecutor, WorkersDie
from cabafl.learning.task import Task

Warn = Callable[[str], None]


class Workers(Protocol):
    """Started before the data are read; becomes an executor when the task is there."""

    def for_task(self, task: Task) -> Executor:
        """The executor of one run."""


class _Inline:
    def for_task(self, task: Task) -> Executor:
        return InlineExecutor(task)


class _Processes:
    def __init__(self, executor: ProcessExecutor, model: str) -> None:
        self._executor = executor
        self._model = model

    def for_task(self, task: Task) -> Executor:
        self._executor.load(task, self._model)
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
    count = worker_count(run.workers)
    if count == 0:
        yield _Inline()
        return
    executor = ProcessExecutor(count, warn)
    try:
        yield _Processes(executor, experiment.model.name)
    except WorkersDie as error:
        raise RunStopped(str(error)) from None
    finally:
        executor.close()
