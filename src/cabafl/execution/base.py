"""The jobs that engines submit, what each of them computes, and who carries them out: the interface of executors, and
what all executors with workers share (tickets, the queue of waiting jobs, results, retries)."""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from cabafl.errors import RunStopped
from cabafl.learning.task import UNTIL_THE_END, Control, Task
from cabafl.methods.base import PLAIN, FeatureKind, Objective, Weights
from cabafl.own_code import blaming

JOBS_PER_WORKER = 2  # sent to a worker at a time: it finds its next job waiting when it finishes one
MAX_ATTEMPTS = 5  # a job that loses this many workers stops the run
POLL_SECONDS = 0.5  # how often a wait for a result checks for an interrupt
NO_WEIGHTS = np.zeros(0, dtype=np.float32)  # placeholder in a job whose weights travel separately


class TrainJob(NamedTuple):
    """Local training on one device; returns `learning.task.TrainingResult`."""

    number: int
    device: int
    weights: Weights
    objective: Objective = PLAIN
    flipped: bool = False  # a simulated attacker: the labels are C - 1 - y
    correction: Weights | None = None  # like weights


class EvaluateJob(NamedTuple):
    """Evaluation on one fixed chunk of the test samples; returns `learning.evaluation.Score`."""

    weights: Weights
    chunk: int


class DevicesJob(NamedTuple):
    """Evaluation of devices on their own samples; returns a `learning.evaluation.Score` for each place in the panel."""

    weights: Weights
    places: range


class FeatureJob(NamedTuple):
    """Features of consecutive devices; returns a float32 array with one row per device."""

    weights: Weights
    kind: FeatureKind
    devices: range


ExecutorJob = TrainJob | EvaluateJob | DevicesJob | FeatureJob
Interrupt = Callable[[], None]  # called while waiting; raises to stop waiting
Warn = Callable[[str], None]  # receives one-line warnings for the user


def run_job(task: Task, job: ExecutorJob) -> Any:
    """Runs a job on a task; called in whichever process holds the task."""
    if not task.own_code:
        return _compute(task, job)
    with blaming(task.own_code):
        return _compute(task, job)


def _compute(task: Task, job: ExecutorJob) -> Any:
    if isinstance(job, TrainJob):
        control = Control(flipped=True) if job.flipped else UNTIL_THE_END
        return task.train(job.number, job.device, job.weights, job.objective, job.correction, control)
    if isinstance(job, EvaluateJob):
        return task.evaluate(*job)
    if isinstance(job, DevicesJob):
        return task.evaluate_devices(*job)
    return task.features(*job)


def without_vectors(job: ExecutorJob) -> ExecutorJob:
    """The job with empty vectors in place of its own, which travel separately."""
    if isinstance(job, TrainJob):
        return job._replace(weights=NO_WEIGHTS, correction=None if job.correction is None else NO_WEIGHTS)
    return job._replace(weights=NO_WEIGHTS)


class Executor(Protocol):
    """Runs jobs in any order and in any process; results do not depend on either."""

    evaluation_chunks: int
    feature_chunks: list[range]

    def submit(self, job: ExecutorJob, due: float = 0.0) -> int:
        """Queues a job and returns its ticket. Jobs with a smaller ``due`` (virtual seconds) start first."""

    def done(self, ticket: int) -> bool:
        """Whether `result` would return without waiting for a worker."""

    def result(self, ticket: int, interrupt: Interrupt | None = None) -> Any:
        """Waits for a job and returns its result, once per ticket; re-raises the job's exception."""

    def discard(self, ticket: int) -> None:
        """Drops a job whose result is not needed."""

    def close(self) -> None:
        """Stops all work."""


class QueuedExecutor(ABC):
    """`Executor` on workers of any kind; ``worker`` and ``workers`` are their names in messages."""

    def __init__(self, worker: str, workers: str, warn: Warn | None = None) -> None:
        self.warn = warn or (lambda text: None)
        self.evaluation_chunks = 0
        self.feature_chunks: list[range] = []
        self._singular, self._plural = worker, workers
        self._waiting: list[tuple[float, int]] = []  # heap of (due, ticket)
        self._jobs: dict[int, ExecutorJob] = {}  # waiting or sent, with their input weights
        self._due: dict[int, float] = {}
        self._attempts: dict[int, int] = {}  # workers lost per job
        self._results: dict[int, Any] = {}
        self._tickets = 0
        self._failed_starts = 0

    def submit(self, job: ExecutorJob, due: float = 0.0) -> int:
        """Queues a job and sends it right away if a worker has room."""
        self._tickets += 1
        ticket = self._tickets
        self._jobs[ticket] = job
        self._due[ticket] = due
        heapq.heappush(self._waiting, (due, ticket))
        self._send_jobs()
        return ticket

    def done(self, ticket: int) -> bool:
        """Whether the result is here; handles replies that have arrived."""
        if ticket not in self._results:
            self._receive(0.0)
        return ticket in self._results

    def result(self, ticket: int, interrupt: Interrupt | None = None) -> Any:
        """Waits for one job; the workers continue with the others meanwhile."""
        while ticket not in self._results:
            if interrupt is not None:
                interrupt()
            self._receive(POLL_SECONDS)
        result = self._results.pop(ticket)
        if isinstance(result, Exception):
            raise result
        return result

    def discard(self, ticket: int) -> None:
        """Drops a job; if a worker is already running it, its result is ignored."""
        self._jobs.pop(ticket, None)
        self._due.pop(ticket, None)
        self._results.pop(ticket, None)

    def for_task(self, task: Task) -> Executor:
        """Gives the workers the task; they accept jobs from now on."""
        self.evaluation_chunks = task.evaluation_chunks
        self.feature_chunks = task.feature_chunks()
        self._load(task)
        return self

    @abstractmethod
    def close(self) -> None:
        """Stops the workers."""

    # Each kind of worker implements these three.

    @abstractmethod
    def _load(self, task: Task) -> None:
        """Sends the task to every worker."""

    @abstractmethod
    def _send_jobs(self) -> None:
        """Sends waiting jobs to workers that have room."""

    @abstractmethod
    def _receive(self, timeout: float) -> None:
        """Handles replies, waiting up to ``timeout`` seconds for the first, then sends waiting jobs."""

    # Used by those implementations.

    def _next_job(self) -> tuple[int, ExecutorJob] | None:
        """Takes the waiting job with the smallest due time; None if there is none."""
        while self._waiting:
            _, ticket = heapq.heappop(self._waiting)
            if ticket in self._jobs:  # else it was discarded
                return ticket, self._jobs[ticket]
        return None

    def _finish(self, ticket: int, result: Any) -> None:
        """Stores a result, or an exception, unless the job was discarded."""
        self._attempts.pop(ticket, None)
        if self._jobs.pop(ticket, None) is not None:
            del self._due[ticket]
            self._results[ticket] = result

    def _requeue(self, tickets: Iterable[int], was_ready: bool, cause: str) -> None:
        """Queues the jobs of a dead worker again: the same job gives the same result on any worker."""
        lost = list(tickets)
        self._failed_starts = 0 if was_ready else self._failed_starts + 1
        if self._failed_starts >= MAX_ATTEMPTS:
            raise RunStopped(f"{MAX_ATTEMPTS} {self._plural} in a row died before their first job ({cause})")
        self.warn(f"a {self._singular} died ({cause}); a new one repeats its {len(lost)} jobs")
        for ticket in lost:
            self._attempts[ticket] = self._attempts.get(ticket, 0) + 1
            if self._attempts[ticket] >= MAX_ATTEMPTS:
                raise RunStopped(f"{MAX_ATTEMPTS} {self._plural} died running the same job (last cause: {cause})")
            if ticket in self._jobs:
                heapq.heappush(self._waiting, (self._due[ticket], ticket))
