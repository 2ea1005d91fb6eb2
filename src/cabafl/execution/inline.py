"""Jobs in the calling process, each carried out when its result is asked for."""

from collections.abc import Callable
from functools import partial
from typing import Any

from cabafl.execution.base import EvaluateJob, ExecutorJob, Interrupt, TrainJob
from cabafl.learning.task import Task


def carry_out(task: Task, job: ExecutorJob) -> Any:
    """One job on a task, whatever process it lives in."""
    if isinstance(job, TrainJob):
        return task.train(job.number, job.device, job.weights, job.objective)
    if isinstance(job, EvaluateJob):
        return task.evaluate(*job)
    return task.features(*job)


class LazyExecutor:
    """Work whose result nobody asks for is never done."""

    def __init__(self, evaluation_chunks: int, feature_chunks: list[range], work: Callable[[ExecutorJob], Any]) -> None:
        self.evaluation_chunks = evaluation_chunks
        self.feature_chunks = feature_chunks
        self._work = work
        self._jobs: dict[int, ExecutorJob] = {}
        self._tickets = 0

    def submit(self, job: ExecutorJob, due: float = 0.0) -> int:
        """Keeps the job for later."""
        self._tickets += 1
        self._jobs[self._tickets] = job
        return self._tickets

    def done(self, ticket: int) -> bool:
        """There is nobody else to wait for."""
        return True

    def result(self, ticket: int, interrupt: Interrupt | None = None) -> Any:
        """Carries the job out now."""
        if interrupt is not None:
            interrupt()
        return self._work(self._jobs.pop(ticket))

    def discard(self, ticket: int) -> None:
        """Forgets the job."""
        del self._jobs[ticket]

    def close(self) -> None:
        """Forgets all jobs."""
        self._jobs.clear()


def inline_executor(task: Task) -> LazyExecutor:
    """An executor that carries jobs out in the calling process."""
    return LazyExecutor(task.evaluation_chunks, task.feature_chunks(), partial(carry_out, task))
