"""Keeps the record in the order of virtual time, although evaluations are computed beside training."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from cabafl.engine.ledger import Ledger
from cabafl.execution.base import EvaluateJob, Executor
from cabafl.methods.base import Weights
from cabafl.recording.events import Evaluated, Event

PENDING_LIMIT = 16  # evaluations that may be under way before the engine waits for the oldest


class PendingScore:
    """Accuracy and loss of one version, computed when first needed, in fixed chunks added in order."""

    def __init__(self, version: int, value: tuple[float, float] | None = None) -> None:
        self.version = version
        self.value = value
        self._tickets: list[int] = []

    def begin(self, executor: Executor, weights: Weights, now: float) -> None:
        """Hands the chunks out."""
        self._tickets = [executor.submit(EvaluateJob(weights, i), now) for i in range(executor.evaluation_chunks)]

    def ready(self, executor: Executor) -> bool:
        """Whether `get` would not wait."""
        return self.value is not None or all(map(executor.done, self._tickets))

    def get(self, executor: Executor) -> tuple[float, float]:
        """Accuracy and mean loss."""
        if self.value is None:
            parts = [executor.result(ticket) for ticket in self._tickets]
            samples = sum(part.samples for part in parts)
            self.value = sum(part.correct for part in parts) / samples, sum(part.loss for part in parts) / samples
        return self.value


@dataclass(slots=True)
class _PendingRow:
    time: float
    score: PendingScore
    totals: tuple[int, int, int, int, int, float]


class Outbox:
    """A queue in front of the listeners; empty, and out of the way, unless an evaluation is under way."""

    def __init__(self, executor: Executor, emit: Callable[[Event], None]) -> None:
        self._executor = executor
        self._emit = emit
        self.put = emit  # takes an event of now
        self.waiting: deque[Event | _PendingRow] = deque()  # the first is a row under way
        self._pending = 0

    def put_row(self, time: float, score: PendingScore, ledger: Ledger) -> None:
        """An evaluation of now, whose figures may come later; the totals are those of now."""
        totals = (
            ledger.downloads,
            ledger.uploads,
            ledger.feature_downloads,
            ledger.transfers,
            ledger.bytes,
            ledger.joules,
        )
        self.waiting.append(_PendingRow(time, score, totals))
        self.put = self.waiting.append
        self._pending += 1
        self.flush(wait=self._pending > PENDING_LIMIT)

    def flush(self, wait: bool = False) -> None:
        """Sends on what is complete; with ``wait`` everything, however long it takes."""
        while self.waiting:
            entry = self.waiting[0]
            if isinstance(entry, _PendingRow):
                if not (wait or entry.score.ready(self._executor)):
                    return
                accuracy, loss = entry.score.get(self._executor)
                entry = Evaluated(entry.time, entry.score.version, accuracy, loss, *entry.totals)
                self._pending -= 1
            self.waiting.popleft()
            self._emit(entry)
        self.put = self._emit
