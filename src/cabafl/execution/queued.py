"""What executors with workers share: tickets, the order of waiting jobs, results, and second tries."""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from cabafl.execution.base import ExecutorJob, Interrupt
from cabafl.learning.task import Task

PLACES = 2  # jobs a worker has at a time: while it works on one the next is already there
TRIES = 5  # a job that kills this many workers is at fault itself

Warn = Callable[[str], None]


class WorkersDie(RuntimeError):
    """Workers keep dying: the run cannot go on."""


class QueuedExecutor(ABC):
    """`Executor` over workers of any kind; ``worker`` and ``workers`` are what messages call one and several."""

    def __init__(self, worker: str, workers: str, warn: Warn | None = None) -> None:
        self.warn = warn or (lambda text: None)
        self.evaluation_chunks = 0
        self.feature_chunks: list[range] = []
        self._one, self._many = worker, workers
        self._waiting: list[tuple[float, int]] = []  # (due, ticket), earliest first
        self._jobs: dict[int, ExecutorJob] = {}  # all that are not finished, with their input weights
        self._due: dict[int, float] = {}
        self._tries: dict[int, int] = {}
        self._results: dict[int, Any] = {}
        self._tickets = 0
        self._failed_starts = 0

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

    def load(self, task: Task) -> None:
        """Gives the workers the task."""
        self.evaluation_chunks = task.evaluation_chunks
        self.feature_chunks = task.feature_chunks()

    @abstractmethod
    def close(self) -> None:
        """Ends all work."""

    # For the kinds of workers

    @abstractmethod
    def _feed(self) -> None:
        """Gives waiting jobs to workers that can take one."""

    @abstractmethod
    def _pump(self, timeout: float) -> None:
        """Takes in what has arrived, waiting up to ``timeout`` for something, and feeds the workers."""

    def _next(self) -> tuple[int, ExecutorJob] | None:
        """Takes the waiting job that is due first."""
        while self._waiting:
            _, ticket = heapq.heappop(self._waiting)
            if ticket in self._jobs:
                return ticket, self._jobs[ticket]
        return None  # the rest was discarded

    def _finish(self, ticket: int, result: Any) -> None:
        self._tries.pop(ticket, None)
        if self._jobs.pop(ticket, None) is not None:
            del self._due[ticket]
            self._results[ticket] = result

    def _lose(self, tickets: Iterable[int], started: bool, cause: str) -> None:
        """A worker died: its jobs start again, with the same result. ``started``: it had come up before."""
        lost = list(tickets)
        self._failed_starts = 0 if started else self._failed_starts + 1
        if self._failed_starts >= TRIES:
            raise WorkersDie(f"{TRIES} {self._many} in a row ended before their first job ({cause})")
        self.warn(f"a {self._one} died ({cause}); a new one takes over its {len(lost)} jobs")
        for ticket in lost:
            self._tries[ticket] = self._tries.get(ticket, 0) + 1
            if self._tries[ticket] >= TRIES:
                raise WorkersDie(f"a job was lost with {TRIES} {self._many} (the last: {cause})")
            if ticket in self._jobs:
                heapq.heappush(self._waiting, (self._due[ticket], ticket))
