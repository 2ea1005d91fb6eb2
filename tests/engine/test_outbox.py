"""Events keep their order although evaluations finish later."""

from typing import Any

import numpy as np
import pytest

from cabafl.engine.ledger import Ledger
from cabafl.engine.outbox import PENDING_LIMIT, Outbox, PendingScore
from cabafl.errors import UserError
from cabafl.execution.base import EvaluateJob, ExecutorJob, Interrupt
from cabafl.learning.builtin_tasks import Classification
from cabafl.learning.evaluation import Score
from cabafl.recording.events import Evaluated, Event, Noted

WEIGHTS = np.zeros(1, dtype=np.float32)

METRICS = Classification().metrics()[:1]


class SlowExecutor:
    """Evaluates in two chunks; a result is ready when the test says so, or when `result` is called."""

    def __init__(self) -> None:
        self.evaluation_chunks = 2
        self.feature_chunks: list[range] = []
        self.ready: set[int] = set()
        self.jobs: list[ExecutorJob] = []

    def submit(self, job: ExecutorJob, due: float = 0.0) -> int:
        self.jobs.append(job)
        return len(self.jobs) - 1

    def done(self, ticket: int) -> bool:
        return ticket in self.ready

    def result(self, ticket: int, interrupt: Interrupt | None = None) -> Any:
        job = self.jobs[ticket]
        assert isinstance(job, EvaluateJob)
        return Score(((3.0 + job.chunk,),), 2.0, 10)

    def discard(self, ticket: int) -> None:
        pass

    def close(self) -> None:
        pass


def pending(executor: SlowExecutor, version: int) -> PendingScore:
    score = PendingScore(version)
    score.begin(executor, [WEIGHTS], 0.0)
    return score


def test_events_behind_a_pending_evaluation_wait_for_it() -> None:
    executor, emitted = SlowExecutor(), list[Event]()
    outbox, ledger = Outbox(executor, emitted.append, METRICS), Ledger(downloads=3, uploads=2)
    outbox.put(Noted(0.0, "first", {}))
    outbox.put_row(1.0, pending(executor, 4), ledger)
    ledger.uploads = 99  # later counts do not change the row
    outbox.put(Noted(2.0, "behind", {}))
    executor.ready = {0}
    outbox.flush()
    assert [event.time for event in emitted] == [0.0]
    executor.ready = {0, 1}
    outbox.flush()
    row = emitted[1]
    assert isinstance(row, Evaluated)
    assert (row.time, row.version, row.value, row.loss, row.downloads, row.uploads) == (1.0, 4, 7 / 20, 0.2, 3, 2)
    assert [event.time for event in emitted] == [0.0, 1.0, 2.0]
    outbox.put(Noted(3.0, "at once", {}))
    assert len(emitted) == 4


def test_the_engine_waits_if_too_many_evaluations_are_pending() -> None:
    executor, emitted = SlowExecutor(), list[Event]()
    outbox = Outbox(executor, emitted.append, METRICS)
    for version in range(PENDING_LIMIT + 1):
        assert emitted == []
        outbox.put_row(float(version), pending(executor, version), Ledger())
    assert [event.time for event in emitted] == [float(version) for version in range(PENDING_LIMIT + 1)]


def test_facts_that_wait_are_those_of_their_time() -> None:
    executor, emitted = SlowExecutor(), list[Event]()
    outbox = Outbox(executor, emitted.append, METRICS)
    outbox.put_row(1.0, pending(executor, 4), Ledger())
    devices = [1]
    outbox.tell(Noted(1.0, "group", {"devices": devices}))
    devices.append(2)  # how long evaluations take must not decide which of the two is recorded
    with pytest.raises(UserError, match="event 'bad' cannot be recorded"):
        outbox.tell(Noted(2.0, "bad", {"x": {3}}))
    outbox.flush(wait=True)
    assert emitted[1:] == [Noted(1.0, "group", {"devices": [1]})]
