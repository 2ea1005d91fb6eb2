"""The jobs that engines submit, what each of them computes, and the interface of executors."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from cabafl.learning.task import Task
from cabafl.methods.base import PLAIN, FeatureKind, Objective, Weights

NO_WEIGHTS = np.zeros(0, dtype=np.float32)  # placeholder in a job whose weights travel separately


class TrainJob(NamedTuple):
    """Local training on one device; returns `learning.task.TrainingResult`."""

    number: int
    device: int
    weights: Weights
    objective: Objective = PLAIN
    flipped: bool = False  # a simulated attacker: the labels are C - 1 - y


class EvaluateJob(NamedTuple):
    """Evaluation on one fixed chunk of the test samples; returns `learning.evaluation.Score`."""

    weights: Weights
    chunk: int


class FeatureJob(NamedTuple):
    """Features of consecutive devices; returns a float32 array with one row per device."""

    weights: Weights
    kind: FeatureKind
    devices: range


ExecutorJob = TrainJob | EvaluateJob | FeatureJob
Interrupt = Callable[[], None]  # called while waiting; raises to stop waiting
Warn = Callable[[str], None]  # receives one-line warnings for the user


def run_job(task: Task, job: ExecutorJob) -> Any:
    """Runs a job on a task; called in whichever process holds the task."""
    if isinstance(job, TrainJob):
        return task.train(job.number, job.device, job.weights, job.objective, flipped=job.flipped)
    if isinstance(job, EvaluateJob):
        return task.evaluate(*job)
    return task.features(*job)


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
