"""The jobs an engine hands out and the interface of whatever carries them out."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from cabafl.methods.base import PLAIN, FeatureKind, Objective, Weights


class TrainJob(NamedTuple):
    """Local training; the result is a `learning.task.Trained`."""

    number: int
    device: int
    weights: Weights
    objective: Objective = PLAIN


class EvaluateJob(NamedTuple):
    """One fixed chunk of the test samples; the result is a `learning.evaluation.Score`."""

    weights: Weights
    chunk: int


class FeatureJob(NamedTuple):
    """Features of consecutive devices; the result has one float32 row per device."""

    weights: Weights
    kind: FeatureKind
    devices: range


ExecutorJob = TrainJob | EvaluateJob | FeatureJob
Interrupt = Callable[[], None]  # called while waiting; raises to stop the waiting


class Executor(Protocol):
    """Carries out jobs in any order, anywhere: the results do not depend on it."""

    evaluation_chunks: int
    feature_chunks: list[range]

    def submit(self, job: ExecutorJob, due: float = 0.0) -> int:
        """Accepts a job and returns a ticket; may start at once, jobs that are due earlier first."""

    def done(self, ticket: int) -> bool:
        """Whether `result` would not wait for others."""

    def result(self, ticket: int, interrupt: Interrupt | None = None) -> Any:
        """Waits for a job; each result is given out once."""

    def discard(self, ticket: int) -> None:
        """Nobody will ask for this result."""

    def close(self) -> None:
        """Ends all work."""
