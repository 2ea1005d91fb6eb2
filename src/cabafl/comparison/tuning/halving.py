"""Asynchronous successive halving (ASHA, Li et al. 2020) of trials that are continued, not started again.

A run is cut at *rungs*, shares of its length. Every trial runs to the first rung. Of the trials that have reached a
rung, the best third may go on to the next one. Whenever a core is free, the highest possible promotion is made; if
there is none, a new trial begins. So no core ever waits for the others.

Optuna's pruners cannot do this: they answer "stop or go on" while a trial runs, and a trial that was stopped is over
for good. Here a trial waits at its rung with a checkpoint and may be promoted much later, when enough others are worse.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

REDUCTION = 3
MAX_RUNGS = 6
TrialPhase = Literal["running", "waiting", "done", "failed"]


class Part(NamedTuple):
    """Processor seconds of one process of a trial, and how many of them were not for starting it."""

    rung: int
    processor: float
    work: float


@dataclass
class Trial:
    """One point of the search. ``scores`` has one entry per rung that was reached."""

    number: int
    values: dict[str, Any]
    rung: int = 0  # the one it runs to, waits at, or ended at
    phase: TrialPhase = "running"
    scores: list[float] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    failure: str = ""

    @property
    def processor(self) -> float:
        """Processor seconds of all its processes."""
        return sum(part.processor for part in self.parts)


def rung_shares(count: int) -> list[float]:
    """Shares of a whole run, e.g. 1/9, 1/3, 1."""
    return [REDUCTION ** (place + 1 - count) for place in range(count)]


def promotable(trials: Sequence[Trial], rungs: int, loss: Callable[[float], float]) -> Trial | None:
    """The best trial that waits at a rung among the best third there, at the highest rung that has one."""
    for rung in reversed(range(rungs - 1)):
        here = ranked_at(trials, rung, loss)
        for trial in here[: len(here) // REDUCTION]:
            if trial.phase == "waiting" and trial.rung == rung:
                return trial
    return None


def leader(trials: Sequence[Trial], loss: Callable[[float], float]) -> Trial | None:
    """At the end of a search of which no trial is done: the best waiting one at the highest rung. So that a search ends
    with settings that have been run in full."""
    if any(trial.phase == "done" for trial in trials):
        return None
    waiting = [trial for trial in trials if trial.phase == "waiting"]
    return min(waiting, key=lambda trial: (-trial.rung, loss(trial.scores[-1]), trial.number), default=None)


def ranked_at(trials: Sequence[Trial], rung: int, loss: Callable[[float], float]) -> list[Trial]:
    """The trials that have reached a rung, the best first. One that was done earlier counts with its last score."""
    here = [trial for trial in trials if len(trial.scores) > rung or (trial.phase == "done" and trial.scores)]
    return sorted(here, key=lambda trial: (loss(trial.scores[min(rung, len(trial.scores) - 1)]), trial.number))


def ranked(trials: Sequence[Trial], loss: Callable[[float], float]) -> list[Trial]:
    """All trials with a score that have not failed: first those that are done, then by the rung they have reached, then
    by score."""

    def place(trial: Trial) -> tuple[bool, int, float, int]:
        done = trial.phase == "done"
        return not done, 0 if done else -len(trial.scores), loss(trial.scores[-1]), trial.number

    return sorted((trial for trial in trials if trial.scores and trial.phase != "failed"), key=place)


def saved_seconds(trials: Sequence[Trial]) -> float:
    """Processor seconds that promoted trials would have spent again if each had started from the beginning."""
    saved = 0.0
    for trial in trials:
        for rung in {part.rung for part in trial.parts} - {0}:
            saved += sum(part.work for part in trial.parts if part.rung < rung)
    return saved
