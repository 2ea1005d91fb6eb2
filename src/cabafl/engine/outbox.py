"""Keeps events in order although evaluations are computed in parallel to training and finish later."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cabafl.engine.best import BestModel
from cabafl.engine.ledger import Ledger
from cabafl.execution.base import EvaluateJob, Executor
from cabafl.methods.base import Weights
from cabafl.recording.events import Evaluated, Event

PENDING_LIMIT = 16  # pending evaluations at which the engine waits for the oldest one


class PendingScore:
    """Accuracy and loss of one version, and of the average up to it if there is one; computed in fixed chunks that are
    added in order."""

    def __init__(self, version: int, value: tuple[float, ...] | None = None) -> None:
        self.version = version
        self.value = value
        self.model: Weights | None = None  # the last of the models, until the score is there
        self._tickets: list[list[int]] = []  # per model

    def begin(self, executor: Executor, models: Sequence[Weights], now: float) -> None:
        """Submits the chunks to the executor."""
        chunks = range(executor.evaluation_chunks)
        self.model = models[-1]
        self._tickets = [[executor.submit(EvaluateJob(model, i), now) for i in chunks] for model in models]

    def ready(self, executor: Executor) -> bool:
        """Whether `get` returns without waiting."""
        return self.value is not None or all(executor.done(ticket) for tickets in self._tickets for ticket in tickets)

    def get(self, executor: Executor) -> tuple[float, ...]:
        """Accuracy and mean loss of each model; waits for them if necessary."""
        if self.value is None:
            value: list[float] = []
            for tickets in self._tickets:
                parts = [executor.result(ticket) for ticket in tickets]
                samples = sum(part.samples for part in parts)
                value += [sum(part.correct for part in parts) / samples, sum(part.loss for part in parts) / samples]
            self.value = tuple(value)
        return self.value


@dataclass(slots=True)
class _PendingRow:
    time: float
    score: PendingScore
    totals: tuple[int, int, int, int, int, float]


class Outbox:
    """A queue in front of the listeners. While no evaluation is pending, events bypass it.

    ``patient``: every evaluation is waited for, so that what it shows can end the run at that very time.
    """

    def __init__(self, executor: Executor, emit: Callable[[Event], None], best: BestModel | None = None) -> None:
        self._executor = executor
        self._emit = emit
        self.put = emit  # emits or queues an event
        self.waiting: deque[Event | _PendingRow] = deque()  # starts with a pending row
        self._pending = 0
        self.best = best
        self.patient = False

    def put_row(self, time: float, score: PendingScore, ledger: Ledger) -> None:
        """Queues an evaluation whose score may come later; its totals are the current ones."""
        totals = (
            ledger.downloads,
            ledger.uploads,
            ledger.feature_downloads,
            ledger.transfers,
            ledger.bytes,
            ledger.joules + ledger.idle_joules,
        )
        self.waiting.append(_PendingRow(time, score, totals))
        self.put = self.waiting.append
        self._pending += 1
        self.flush(wait=self.patient or self._pending > PENDING_LIMIT)

    def flush(self, wait: bool = False) -> None:
        """Emits what is complete; with ``wait`` everything, waiting for pending evaluations."""
        while self.waiting:
            entry = self.waiting[0]
            if isinstance(entry, _PendingRow):
                if not (wait or entry.score.ready(self._executor)):
                    return
                score = entry.score
                accuracy, loss, *averaged = score.get(self._executor)
                if self.best is not None:
                    self.best.see(averaged[0] if averaged else accuracy, score.version, entry.time, score.model)
                score.model = None
                entry = Evaluated(entry.time, score.version, accuracy, loss, *entry.totals, *averaged)
                self._pending -= 1
            self.waiting.popleft()
            self._emit(entry)
        self.put = self._emit
