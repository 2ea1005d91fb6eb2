"""Keeps events in order although evaluations are computed in parallel to training and finish later."""

from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

from cabafl.engine.best import BestModel
from cabafl.engine.ledger import Ledger
from cabafl.execution.base import DevicesJob, EvaluateJob, Executor
from cabafl.learning.evaluation import figures, total
from cabafl.learning.learning_task import TaskMetric
from cabafl.learning.panel import Panel
from cabafl.methods.base import Weights
from cabafl.recording.events import Evaluated, Event, Noted, Published
from cabafl.recording.metrics import over_devices

PENDING_LIMIT = 16  # pending evaluations at which the engine waits for the oldest one


class PendingScore:
    """The metrics and the loss of one version, and of the average up to it if there is one; computed in fixed chunks
    that are added in order."""

    def __init__(
        self, version: int, value: dict[str, float] | None = None, devices: Sequence[float] | None = None
    ) -> None:
        self.version = version
        self.value = value  # by column
        self.devices = devices  # the metric of each device of the panel, if there is one
        self.model: Weights | None = None  # the last of the models, until the score is there
        self._tickets: list[list[int]] = []  # per model
        self._panel: list[int] = []  # tickets

    def begin(self, executor: Executor, models: Sequence[Weights], now: float, panel: Panel | None = None) -> None:
        """Submits the chunks to the executor. The ``panel`` is evaluated with the first model."""
        chunks = range(executor.evaluation_chunks)
        self.model = models[-1]
        self._tickets = [[executor.submit(EvaluateJob(model, i), now) for i in chunks] for model in models]
        places = [] if panel is None else panel.chunks()
        self._panel = [executor.submit(DevicesJob(models[0], each), now) for each in places]

    def ready(self, executor: Executor) -> bool:
        """Whether `get` returns without waiting."""
        tickets = (ticket for tickets in (*self._tickets, self._panel) for ticket in tickets)
        return self.value is not None or all(executor.done(ticket) for ticket in tickets)

    def get(self, executor: Executor, metrics: Sequence[TaskMetric]) -> dict[str, float]:
        """Column -> value, ``averaged_...`` for the second model; waits for the results if necessary."""
        if self.value is None:
            self.value = {}
            for tickets, prefix in zip(self._tickets, ("", "averaged_"), strict=False):
                found = figures(total([executor.result(ticket) for ticket in tickets]), metrics)
                self.value |= {f"{prefix}{name}": value for name, value in found.items()}
            if self._panel:
                scores = [score for ticket in self._panel for score in executor.result(ticket)]
                self.devices = [figures(score, metrics[:1])[metrics[0].name] for score in scores]
                self.value |= over_devices(self.devices, metrics[0].info)
        return self.value


@dataclass(slots=True)
class _PendingRow:
    time: float
    score: PendingScore
    totals: tuple[int, int, int, int, int, float]


class Outbox:
    """A queue in front of the listeners. While no evaluation is pending, `put` and `tell` are ``emit`` itself.

    ``patient``: every evaluation is waited for, so that what it shows can end the run at that very time.
    """

    def __init__(
        self,
        executor: Executor,
        emit: Callable[[Event], None],
        metrics: Sequence[TaskMetric],
        best: BestModel | None = None,
    ) -> None:
        self._executor = executor
        self._metrics = metrics
        self._emit = emit
        self.put = emit  # emits or queues an event
        self.tell: Callable[[Published | Noted], None] = emit  # the same for an event with facts of the method
        self.waiting: deque[Event | _PendingRow] = deque()  # starts with a pending row
        self._pending = 0
        self.best = best
        self.patient = False

    def _keep(self, event: Published | Noted) -> None:
        """Queues an event with facts of the method as they are now: the method may change a list that it has handed
        over, and what cannot be recorded must be found before something else happens."""
        event.line()
        self.waiting.append(event._replace(facts=deepcopy(event.facts)))

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
        self.put, self.tell = self.waiting.append, self._keep
        self._pending += 1
        self.flush(wait=self.patient or self._pending > PENDING_LIMIT)

    def flush(self, wait: bool = False) -> None:
        """Emits what is complete; with ``wait`` everything, waiting for pending evaluations."""
        while self.waiting:
            entry = self.waiting[0]
            if isinstance(entry, _PendingRow):
                if not (wait or entry.score.ready(self._executor)):
                    return
                entry = self._evaluated(entry)
                self._pending -= 1
            self.waiting.popleft()
            self._emit(entry)
        self.put = self.tell = self._emit

    def _evaluated(self, row: _PendingRow) -> Evaluated:
        """The event of an evaluation, once its score is known."""
        metric = self._metrics[0].info
        value = dict(row.score.get(self._executor, self._metrics))
        main, loss = value.pop(metric.name), value.pop("loss")
        averaged = value.pop(f"averaged_{metric.name}", None), value.pop("averaged_loss", None)
        more = tuple(value.items())
        if self.best is not None:
            self.best.see(main if averaged[0] is None else averaged[0], row.score.version, row.time, row.score.model)
        row.score.model = None
        return Evaluated(row.time, row.score.version, main, loss, *row.totals, *averaged, more, metric)
