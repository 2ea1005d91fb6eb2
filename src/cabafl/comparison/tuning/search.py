"""Carries out a search: which run goes on next, until the budget is used up or nothing is left to try."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cabafl.comparison.grid import GridRun, check_folder, result_settings, run_source
from cabafl.comparison.tuning.halving import Part, Trial, leader, promotable, rung_shares
from cabafl.comparison.tuning.metric import Metric
from cabafl.comparison.tuning.sampler import distributions, propose
from cabafl.comparison.tuning.space import Space
from cabafl.comparison.tuning.store import TrialStore
from cabafl.config import Experiment
from cabafl.errors import UserError
from cabafl.recording.events import Evaluated
from cabafl.recording.folder import CHECKPOINT, SUMMARY, complete_metrics

MOST_FAILURES = 3  # one after the other, before the first success: all trials will fail
NOTE_EVERY = 2.0  # seconds between two notes of the time used


@dataclass(frozen=True)
class SearchPlan:
    """What is searched, for what, and how long. ``seeds`` runs make a trial; ``budget`` is in wall seconds."""

    space: Space
    metric: Metric
    rungs: int
    seeds: int
    trials: int | None = None
    budget: float | None = None

    @cached_property
    def first(self) -> Experiment:
        """The experiment with the first value of every key. All trials have its seed and its length."""
        return self.space.experiment(self.space.first)

    def about(self) -> dict[str, str]:
        """What makes two searches the same, as name -> value for readers. How long they go on is not part of it."""
        searched = {dimension.key: dimension.given for dimension in self.space.dimensions}
        options = {"--metric": self.metric.name, "--rungs": str(self.rungs), "--seeds": str(self.seeds)}
        rest = result_settings(self.first).splitlines()
        section, settings = "", {}
        for line in rest:
            if line.startswith("["):
                section = f"{line.strip('[]')}."
            elif "=" in line and not line.startswith("#"):
                key, _, value = line.partition(" = ")
                settings[section + key] = value
        return searched | options | {key: value for key, value in settings.items() if key not in searched}

    def runs(self, trial: Trial, out: Path) -> list[GridRun]:
        """The runs of a trial, one per seed, up to its rung. Raises `UserError` if its values do not go together, or a
        folder holds something else."""
        experiment = self.space.experiment(trial.values)
        runs = []
        for seed in range(experiment.seed, experiment.seed + self.seeds):
            folder = out / "runs" / f"trial-{trial.number:04d}-seed{seed}"
            own = experiment.model_copy(update={"seed": seed})
            until = None if trial.rung == self.rungs - 1 else self.seconds_at(trial.rung)
            runs.append(GridRun(f"trial {trial.number}", seed, own, folder, until=until))
        return runs

    def seconds_at(self, rung: int) -> float:
        """The virtual time of a rung."""
        whole = self.first.run.virtual_time
        assert whole is not None  # `parse_space` checks it
        return whole * rung_shares(self.rungs)[rung]

    def rows(self, run: GridRun, rung: int) -> list[Evaluated]:
        """The evaluations of a run up to a rung. Raises `UserError` if the run was removed or damaged."""
        until = self.seconds_at(rung)
        try:
            rows = [row for row in complete_metrics(run.folder) if row.time <= until]
        except (OSError, ValueError) as error:
            raise UserError(f"{run.folder}: a run of this search that cannot be read: {error}") from None
        if not rows:
            raise UserError(f"{run.folder}: a run of this search without evaluations; it was changed from outside")
        return rows


class Search:
    """The source of runs for `run_source`."""

    def __init__(self, plan: SearchPlan, out: Path, store: TrialStore, show: "Callable[[Search], None]") -> None:
        self.plan, self.out = plan, out
        self.trials = store.trials()
        self.running: list[GridRun] = []
        self.broken: str | None = None  # why no trial can succeed
        self._store, self._show = store, show
        self._queue: list[GridRun] = []
        self._owners: dict[Path, Trial] = {}
        self._left: dict[int, int] = {}  # number of a trial -> its runs that have not reached the rung
        self._clocks: dict[Path, tuple[float, float]] = {}  # at the start of a process: now, and the run's wall seconds
        self._failures = 0
        self._exhausted = False
        self._began, self._before = time.monotonic(), store.seconds
        self._noted = self._began
        self._forms = distributions(plan.space)
        self._seed = plan.first.seed

    @property
    def seconds(self) -> float:
        """Wall seconds of the search, those of earlier calls included."""
        return self._before + time.monotonic() - self._began

    def run(self, jobs: int) -> None:
        """Searches on ``jobs`` cores. Raises `KeyboardInterrupt` after Ctrl-C or SIGTERM; the same call continues."""
        try:
            self.prepare()
            run_source(self, jobs)
        finally:
            self._store.spend(self.seconds)

    def prepare(self) -> None:
        """Takes up the trials of an interrupted search."""
        for trial in self.trials:
            if trial.phase == "waiting" and self._final(trial):  # killed between the two
                self._store.finish(trial)
            elif trial.phase == "running":
                self._go_on(trial)

    # The source

    def take(self, free: int) -> GridRun | None:
        """See `RunSource.take`. The last run gets all cores."""
        if self._over():
            return None
        while not self._queue and self._next_trial():
            pass
        if not self._queue:
            return None
        run = self._queue.pop(0)
        last = not self._queue and not self.running and not self._may_begin() and self._promotable() is None
        run.cores = free if last else 1
        self.running.append(run)
        self._clocks[run.folder] = time.monotonic(), _wall_seconds(run.folder)
        return run

    def ended(self, run: GridRun) -> None:
        """See `RunSource.ended`."""
        self.running.remove(run)
        trial = self._owners[run.folder]
        self._store.add_part(trial, self._part(trial, run))
        if run.failure is None:
            self._left[trial.number] -= 1
            if self._left[trial.number] == 0 and trial.phase == "running":
                self._reach(trial)
        elif not run.stopped and trial.phase == "running":
            self._fail(trial, run.failure)

    def poll(self) -> bool:
        """See `RunSource.poll`."""
        if time.monotonic() - self._noted > NOTE_EVERY:
            self._noted = time.monotonic()
            self._store.spend(self.seconds)
        self._show(self)
        return self._over()

    def _over(self) -> bool:
        return self.broken is not None or (self.plan.budget is not None and self.seconds >= self.plan.budget)

    # Trials

    def _next_trial(self) -> bool:
        """Promotes a trial or begins a new one; False if neither is possible now."""
        trial = self._promotable()
        if trial is None and self._may_begin():
            point = propose(self.plan.space, self.trials, self._seed, self.plan.metric)
            if point is not None:
                trial = self._store.add(point, self._forms)
                self.trials.append(trial)
                self._go_on(trial)
                return True
            self._exhausted = True
        if trial is None and not self.running:
            trial = leader(self.trials, self.plan.metric.loss)
        if trial is None:
            return False
        self._store.promote(trial)
        self._go_on(trial)
        return True

    def _promotable(self) -> Trial | None:
        return promotable(self.trials, self.plan.rungs, self.plan.metric.loss)

    def _may_begin(self) -> bool:
        most = self.plan.trials
        return not self._exhausted and (most is None or len(self.trials) < most) and self.broken is None

    def _go_on(self, trial: Trial) -> None:
        """Puts the runs of a trial into the queue."""
        try:
            runs = self.plan.runs(trial, self.out)
        except UserError as error:  # each value is valid, but not together with the others
            self._fail(trial, str(error))
            return
        for run in runs:
            check_folder(run)
        pending = [run for run in runs if not run.done]
        self._left[trial.number] = len(pending)
        self._owners |= {run.folder: trial for run in pending}
        self._queue += pending
        if not pending:
            self._reach(trial)

    def _reach(self, trial: Trial) -> None:
        runs = self.plan.runs(trial, self.out)
        rows = [self.plan.rows(run, trial.rung) for run in runs]
        whole = all(run.done for run in runs)
        self._store.reach(trial, self.plan.metric.score(rows, whole))
        self._failures = 0
        if whole or self._final(trial):
            self._store.finish(trial)

    def _final(self, trial: Trial) -> bool:
        """Whether longer runs would not change the score."""
        return trial.rung == self.plan.rungs - 1 or self.plan.metric.reached(trial.scores[-1])

    def _fail(self, trial: Trial, failure: str) -> None:
        self._store.fail(trial, failure)
        self._queue = [run for run in self._queue if self._owners[run.folder] is not trial]
        self._failures += 1
        if self._failures >= MOST_FAILURES and not any(trial.scores for trial in self.trials):
            self.broken = failure

    def _part(self, trial: Trial, run: GridRun) -> Part:
        """The run's own clock counts from when everything is loaded; its share of the time of the process is taken as
        the share of the processor time that was work."""
        began, before = self._clocks.pop(run.folder)
        lasted = max(time.monotonic() - began, 1e-9)
        share = (_wall_seconds(run.folder) - before) / lasted
        return Part(trial.rung, run.processor_seconds, run.processor_seconds * min(1.0, max(0.0, share)))


def _wall_seconds(folder: Path) -> float:
    """Wall seconds of a run, loading not included, up to its last checkpoint or its end."""
    for name in (SUMMARY, CHECKPOINT):
        try:
            about: Mapping[str, float] = json.loads((folder / name).read_text(encoding="utf-8"))
            return float(about["wall_seconds"])
        except (OSError, ValueError, KeyError):
            continue
    return 0.0
