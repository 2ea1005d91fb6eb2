"""Worker processes that serve the runs of several tests, because a new one needs a second before its first job."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest

from cabafl.config import Experiment
from cabafl.execution.base import Warn
from cabafl.execution.pool import ProcessExecutor
from cabafl.execution.task_arrays import Arrays, arrays_of
from cabafl.learning.task import Task


class Lasting:
    """The workers of one number: the first run gives them the task, and the later ones must have the same."""

    def __init__(self, workers: int) -> None:
        self.executor = ProcessExecutor(workers)
        self.task: Task | None = None
        self.arrays: Arrays = {}

    def for_task(self, task: Task) -> ProcessExecutor:
        """See `cabafl.execution.choice.Workers`."""
        given = {name: np.array(array) for name, array in arrays_of(task).items()}
        if self.task is None:
            self.executor.for_task(task)
            self.task, self.arrays = task, given
        assert task.spec == self.task.spec
        assert given.keys() == self.arrays.keys()
        for name, array in given.items():
            np.testing.assert_array_equal(array, self.arrays[name])
        return self.executor


class LastingPools:
    """`Lasting` workers of each number that is asked for."""

    def __init__(self) -> None:
        self._pools: dict[int, Lasting] = {}

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Inside the context, simulations with ``run.workers`` > 0 use these workers."""
        with mock.patch("cabafl.lifecycle.simulate.open_executor", self._open):
            yield

    @contextmanager
    def _open(self, experiment: Experiment, warn: Warn | None = None) -> Iterator[Lasting]:
        workers = experiment.run.workers
        assert isinstance(workers, int)
        if workers not in self._pools:
            self._pools[workers] = Lasting(workers)
        pool = self._pools[workers]
        pool.executor.warn = warn or (lambda text: None)
        try:
            yield pool
        finally:
            for ticket in [*pool.executor._jobs, *pool.executor._results]:  # nobody waits for them any more
                pool.executor.discard(ticket)

    def close(self) -> None:
        """Kills the workers."""
        for pool in self._pools.values():
            pool.executor.close()


@pytest.fixture(scope="module")
def lasting() -> Iterator[LastingPools]:
    """Worker processes that serve one run after the other."""
    pools = LastingPools()
    yield pools
    pools.close()
