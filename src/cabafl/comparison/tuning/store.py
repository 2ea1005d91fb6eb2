"""The search on disk: an Optuna study in an SQLite file.

SQLite, because every change is one transaction: after ``kill -9`` at any moment a change is there or not. (A file of
Optuna's JournalStorage can end in half a line, and what is appended to that line cannot be read; its lock file stays.)
The file is made under another name and renamed when it is complete.

A trial that waits at a rung is ``RUNNING`` in Optuna's terms, because a trial that has ended cannot go on. Its
intermediate values are its scores, one per rung.
"""

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import DatabaseError

from cabafl.comparison.grid import LOCK
from cabafl.comparison.tuning.halving import Part, Trial, TrialPhase
from cabafl.errors import UserError
from cabafl.files import sync_folder

STUDY = "study.sqlite3"
NAME = "cabafl"


class TrialStore:
    """The trials of a search. What was done last is complete after a kill, or it was not done."""

    def __init__(self, study: optuna.Study, storage: RDBStorage) -> None:
        self._study, self._storage = study, storage
        self._ids = {trial.number: trial._trial_id for trial in study.get_trials(deepcopy=False)}

    def trials(self) -> list[Trial]:
        """All trials, in the order of their numbers."""
        return [_as_trial(trial) for trial in self._study.get_trials(deepcopy=False)]

    def add(self, values: Mapping[str, Any], forms: dict[str, BaseDistribution]) -> Trial:
        """A new trial, on its way to the first rung."""
        new = create_trial(state=TrialState.RUNNING, params=dict(values), distributions=forms, user_attrs={"rung": 0})
        self._study.add_trial(new)
        stored = self._study.get_trials(deepcopy=False)[-1]
        self._ids[stored.number] = stored._trial_id
        return _as_trial(stored)

    def promote(self, trial: Trial) -> None:
        """The trial goes on to the next rung."""
        self._storage.set_trial_user_attr(self._ids[trial.number], "rung", trial.rung + 1)
        trial.rung, trial.phase = trial.rung + 1, "running"

    def add_part(self, trial: Trial, part: Part) -> None:
        """A process of the trial has ended."""
        trial.parts.append(part)
        self._storage.set_trial_user_attr(self._ids[trial.number], "parts", [list(each) for each in trial.parts])

    def reach(self, trial: Trial, score: float) -> None:
        """The trial has reached its rung and waits there."""
        self._storage.set_trial_intermediate_value(self._ids[trial.number], trial.rung, score)
        trial.scores.append(score)
        trial.phase = "waiting"

    def finish(self, trial: Trial) -> None:
        """A waiting trial is done: it has run in full, or its score cannot change any more."""
        self._storage.set_trial_state_values(self._ids[trial.number], TrialState.COMPLETE, trial.scores[-1:])
        trial.phase = "done"

    def fail(self, trial: Trial, failure: str) -> None:
        """The trial cannot go on."""
        self._storage.set_trial_user_attr(self._ids[trial.number], "failure", failure)
        self._storage.set_trial_state_values(self._ids[trial.number], TrialState.FAIL)
        trial.failure, trial.phase = failure, "failed"

    @property
    def seconds(self) -> float:
        """Wall seconds that the search has taken so far."""
        return float(self._study.user_attrs.get("seconds", 0.0))

    def spend(self, seconds: float) -> None:
        """Notes the wall seconds so far."""
        self._study.set_user_attr("seconds", seconds)

    def close(self) -> None:
        """Closes the file."""
        self._storage.engine.dispose()


def _as_trial(stored: FrozenTrial) -> Trial:
    attributes = stored.user_attrs
    rung = int(attributes["rung"])
    scores = [stored.intermediate_values[place] for place in sorted(stored.intermediate_values)]
    parts = [Part(*each) for each in attributes.get("parts", [])]
    failure = str(attributes.get("failure", ""))
    return Trial(stored.number, dict(stored.params), rung, _phase(stored, rung), scores, parts, failure)


def _phase(stored: FrozenTrial, rung: int) -> TrialPhase:
    if stored.state is TrialState.COMPLETE:
        return "done"
    if stored.state is TrialState.FAIL:
        return "failed"
    return "waiting" if rung in stored.intermediate_values else "running"


def open_store(out: Path, about: Mapping[str, str], lower_is_better: bool) -> TrialStore:
    """Opens the search of a folder, or begins one in an empty folder. ``about`` says what is searched, as name ->
    value; another search, or something else in the folder, is a `UserError`."""
    path = out / STUDY
    if not path.exists():
        _begin(out, about, lower_is_better)
    try:
        storage = _storage(path)
        study = optuna.load_study(study_name=NAME, storage=storage)
    except (DatabaseError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not the study of a search: {reason}") from None
    before = json.loads(study.user_attrs.get("about", "{}"))
    for name in {**before, **about}:
        if before.get(name) != about.get(name):
            raise UserError(
                f"{name} = {about.get(name, 'not set')}: the search in {out} has {before.get(name, 'it not set')}; "
                "accepted: the same, or another --out"
            )
    return TrialStore(study, storage)


def _begin(out: Path, about: Mapping[str, str], lower_is_better: bool) -> None:
    part = out / f".{STUDY}.part"
    if any(path.name != LOCK and not path.name.startswith(part.name) for path in out.iterdir()):
        accepted = "a new or empty folder, or that of an earlier `cabafl tune`"
        raise UserError(f"--out = {out}: holds something else; accepted: {accepted}")
    for path in out.glob(f"{part.name}*"):  # with SQLite's own journal
        path.unlink()
    storage = _storage(part)
    study = optuna.create_study(
        storage=storage, study_name=NAME, direction="minimize" if lower_is_better else "maximize"
    )
    study.set_user_attr("about", json.dumps(dict(about)))
    storage.engine.dispose()
    part.rename(out / STUDY)
    sync_folder(out)


def _storage(path: Path) -> RDBStorage:
    # The path is not part of the URL, in which some signs have a meaning.
    return RDBStorage("sqlite:///file", engine_kwargs={"creator": lambda: sqlite3.connect(path, timeout=60.0)})
