"""What an operator can change while a run on real devices goes on."""

import math
from dataclasses import replace
from typing import Any

from cabafl.engine.changes import CHANGEABLE, Value
from cabafl.engine.core import FOREVER, Engine, EngineSetup
from cabafl.engine.orders import Alarm, AlarmQueue, OpenJobs
from cabafl.methods.base import Ints


class OperatedEngine(Engine):
    """An engine whose limits and defences may change, and which the operator may end."""

    def __init__(self, setup: EngineSetup, claimed: Ints, norm_bound: float | None) -> None:
        super().__init__(setup, claimed)
        self.norm_bound = norm_bound
        self.jobs = OpenJobs()
        self.alarms = AlarmQueue()
        self._last_dispatch = FOREVER  # no job of this number or a higher one is sent any more

    def _bound_samples(self) -> None:
        self.sizes[:] = self.defence.bounded(self.defence.claimed)
        self.defence.report(self.sizes)

    def _change(self, key: str, value: Value) -> None:
        part, name = CHANGEABLE[key]
        if part == "norm_bound":
            assert not isinstance(value, str)
            self.norm_bound = value
        elif part == "defence":
            self.defence.change(name, value)
            if name.startswith("sample") and self._score is not None:
                self._bound_samples()
        else:
            self.limits = replace(self.limits, **{name: value})  # type: ignore[arg-type]
            self._limit_dispatches()
            if name.startswith("evaluate") and self._score is not None:
                self._reschedule_evaluations()
        self.changes[key] = value
        self.note("change", key=key, value=value)

    def _reschedule_evaluations(self) -> None:
        """The next evaluation is at the next multiple of the interval."""
        self.alarms.drop(Alarm.EVALUATE)
        self._set_evaluation(math.floor(self.now / self.limits.evaluate_every) + 1)

    def _limit_dispatches(self) -> None:
        limit = self.limits.max_dispatches
        self._most = min(self._last_dispatch, FOREVER if limit is None else limit)

    def _stop(self, at_once: bool) -> None:
        self.stopping = "now" if at_once else "soon"
        self._last_dispatch = min(self._last_dispatch, self.ledger.dispatches)
        self._limit_dispatches()
        if at_once:
            self.jobs.cancel_all()
        self.note("stop", at_once=at_once)

    def _set_evaluation(self, number: int) -> None:
        if self.limits.evaluate_versions is None:
            self.alarms.set(self.limits.evaluate_every * number, Alarm.EVALUATE, number)

    def state(self) -> dict[str, Any]:
        """See `Engine.state`; also includes jobs under way, alarms and what the operator has changed."""
        return super().state() | {
            "flights": self.jobs.flights,
            "pending": list(self.jobs.pending),
            "alarms": self.alarms,
            "limits": self.limits,
            "norm_bound": self.norm_bound,
            "changes": self.changes,
            "stopping": (self.stopping, self._last_dispatch if self.stopping != "no" else None),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        super().restore(state)
        self.jobs.restore(state["flights"], state["pending"])
        self.alarms = state["alarms"]
        self.limits, self.norm_bound, self.changes = state["limits"], state["norm_bound"], state["changes"]
        self.stopping, last = state["stopping"]
        self._last_dispatch = FOREVER if last is None else last
        self._limit_dispatches()
