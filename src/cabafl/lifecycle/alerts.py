"""Warnings about a run that goes on but leads nowhere: each is given once, with the time and the reason."""

import math
from collections.abc import Callable

from cabafl.engine.core import Engine
from cabafl.engine.simulated import Kind
from cabafl.engine.virtual import VirtualEngine
from cabafl.recording.events import Evaluated

FEWEST = 10  # uploads from which it is no accident if all of them are rejected
_IDLE = (Kind.EVALUATE, Kind.LEAVE)  # entries of the queue after which a method is not asked


class Alerts:
    """Looks at a run after each evaluation."""

    def __init__(self, warn: Callable[[str], None] | None) -> None:
        self._warn = warn
        self._given: set[str] = set()
        self._uploads = self._rejected = 0

    def look(self, engine: Engine, row: Evaluated) -> None:
        """Takes in an evaluation that has just been made."""
        if self._warn is None:
            return
        when = f"at {row.time:g} s"
        if not math.isfinite(row.loss):
            self._give(
                "loss",
                f"{when} the loss on the test samples is not finite ({row.loss}); what helps: a smaller "
                "training.learning_rate, smaller steps of the method, run.defence.update_clip=3",
            )
        uploads, rejected = engine.ledger.uploads, engine.ledger.losses.get("rejected", 0)
        new, refused = uploads - self._uploads, rejected - self._rejected
        if new >= FEWEST:
            self._uploads, self._rejected = uploads, rejected
        if new >= FEWEST and refused == new:
            self._give(
                "rejected",
                f"{when} all of the last {new} uploads have been rejected: their numbers are not finite, too large or "
                "too many; what helps: a smaller training.learning_rate",
            )
        lost = sum(engine.ledger.losses.values())
        if not uploads and lost >= FEWEST:
            self._give(
                "lost",
                f"{when} no upload has arrived, and {lost} jobs have been lost "
                f"({', '.join(f'{reason}: {count}' for reason, count in engine.ledger.losses.items() if count)})",
            )
        if isinstance(engine, VirtualEngine) and _stalled(engine):
            self._give(
                "stalled",
                f"{when} nothing is under way: method.name = {engine.method.name!r} has sent no job and waits for "
                "nothing; the rest of the run changes nothing",
            )

    def _give(self, kind: str, text: str) -> None:
        if kind not in self._given and self._warn is not None:
            self._given.add(kind)
            self._warn(text)


def _stalled(engine: VirtualEngine) -> bool:
    """Whether no job is in flight, and nothing will happen at which the method could send one."""
    limit = engine.limits.max_dispatches
    if engine.flights or engine.now >= engine.horizon or (limit is not None and engine.ledger.dispatches >= limit):
        return False
    return all(kind in _IDLE for _, _, _, kind, _ in engine.queue)
