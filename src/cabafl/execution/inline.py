"""Jobs in the calling process (``run.workers = 0``): each runs when its result is requested."""

from collections.abc import Callable
from functools import partial
from typing import Any

from cabafl.execution.base import Executor, ExecutorJob, Interrupt, run_job
from cabafl.learning.task import Task


class LazyExecutor:
    """`Executor` that calls ``work`` when a result is requested, and never for a discarded job."""

    def __init__(self, evaluation_chunks: int, feature_chunks: list[range], work: Callable[[ExecutorJob], Any]) -> None:
        self.evaluation_chunks = evaluation_chunks
        self.feature_chunks = feature_chunks
        self._work = work
        self._jobs: dict[int, ExecutorJob] = {}
        self._tickets = 0

    def submit(self, job: ExecutorJob, due: float = 0.0) -> int:
        """Stores the job; ``due`` has no effect."""
        self._tickets += 1
        self._jobs[self._tickets] = job
        return self._tickets

    def done(self, ticket: int) -> bool:
        """Always true: `result` computes instead of waiting."""
        return True

    def result(self, ticket: int, interrupt: Interrupt | None = None) -> Any:
        """Runs the job now."""
        if interrupt is not None:
            interrupt()
        return self._work(self._jobs.pop(ticket))

    def discard(self, ticket: int) -> None:
        """Drops the job without running it."""
        del self._jobs[ticket]

    def close(self) -> None:
        """Drops all jobs."""
        self._jobs.clear()


class InlineWorkers:
    """`choice.Workers` without any worker."""

    def for_task(self, task: Task) -> Executor:
        """An executor that runs the task's jobs in this process."""
        return LazyExecutor(task.evaluation_chunks, task.feature_chunks(), partial(run_job, task))
