"""Whole searches with made-up runs: rungs, limits, failures, and kills at any moment."""

import contextlib
import itertools
import random
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import RDBStorage
from optuna.storages._rdb.storage import _VersionManager
from sqlalchemy import event
from sqlalchemy.engine import Engine

from cabafl import load_experiment
from cabafl.comparison.grid import GridRun
from cabafl.comparison.tuning.halving import Trial
from cabafl.comparison.tuning.results import summarised, write_results
from cabafl.comparison.tuning.sampler import importances, propose
from cabafl.comparison.tuning.search import Search
from cabafl.comparison.tuning.store import STUDY, open_store
from cabafl.errors import UserError
from tests.comparison.tuning.made_up import SETTINGS, carry_out, plan, quality, search


@pytest.fixture(scope="module", autouse=True)
def _quick_studies() -> Iterator[None]:
    """Optuna reads the history of its own tables, some dozen files, several times for every study; here it does so
    once. And no change waits for the disk."""
    read = _VersionManager._create_alembic_script
    kept: list[Any] = []

    def once(self: _VersionManager) -> Any:
        if not kept:
            kept.append(read(self))
        return kept[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_VersionManager, "_create_alembic_script", once)
        event.listen(Engine, "connect", _without_waiting)
        yield
        event.remove(Engine, "connect", _without_waiting)


def _without_waiting(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Search:
    """A search of nine trials that nothing has stopped."""
    return search(plan(trials=9), tmp_path_factory.mktemp("whole") / "out")


@pytest.fixture(scope="module")
def one_trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a search of one trial; to be copied."""
    folder = tmp_path_factory.mktemp("one") / "out"
    search(plan(trials=1), folder)
    return folder


def known(found: Search) -> list[tuple[Any, ...]]:
    return [(t.number, t.values, t.rung, t.phase, t.scores) for t in found.trials]


def test_a_search_by_number_of_trials(tmp_path: Path) -> None:
    asked: list[tuple[str, float | None]] = []

    def work(run: GridRun) -> None:
        asked.append((run.folder.name, run.until))
        carry_out(run)

    found = search(plan(), tmp_path / "out", work)
    assert [len(trial.scores) for trial in found.trials].count(3) == 1
    assert {until for _, until in asked} == {10.0, 30.0, None}
    assert len(asked) == len(set(asked))
    assert len([name for name, until in asked if until == 10.0]) == 9
    best = summarised(found.plan, found.trials, tmp_path / "out").best
    assert best is not None
    assert (best.state, best.reached) == ("finished", 3)
    first = {trial.number: trial.scores[0] for trial in found.trials}
    assert (
        sum(score > first[best.number] for score in first.values()) <= 1
    )  # asynchronous: an early one may have gone on


def test_the_best_settings_are_a_complete_experiment_file(tmp_path: Path) -> None:
    found = search(plan(trials=12), tmp_path / "out")
    tuning = summarised(found.plan, found.trials, tmp_path / "out")
    write_results(found.plan, tuning, found.trials, tmp_path / "out")
    assert tuning.best is not None
    written = load_experiment(tmp_path / "out" / "best.toml")
    assert written.training.learning_rate == tuning.best.values["training.learning_rate"]
    assert written.run.virtual_time == 90
    rows = (tmp_path / "out" / "table.csv").read_text().splitlines()
    assert rows[0] == "trial,training.learning_rate,method.k,rungs,accuracy,processor_seconds,state"
    assert len(rows) == 13
    names = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert names == {
        f"{name}.{kind}" for name in ("history", "curves", "keys", "importance") for kind in ("png", "svg")
    }


def test_the_table_has_the_accuracies_that_the_search_compares(tmp_path: Path) -> None:
    """Those of the averaged models, where a trial has them."""
    settings = [word for word in SETTINGS if "method.k" not in word]
    found = search(plan(*settings, "run.average=none,polynomial", trials=6), tmp_path / "out")
    tuning = summarised(found.plan, found.trials, tmp_path / "out")
    scores = {trial.number: trial.scores for trial in found.trials}
    assert {row.number: row.results for row in tuning.rows} == {n: pytest.approx(each) for n, each in scores.items()}
    assert {trial.values["run.average"] for trial in found.trials} == {"none", "polynomial"}


@pytest.mark.parametrize("trials", [1, 2, 5])
def test_a_short_search_still_ends_with_one_whole_run(trials: int, tmp_path: Path) -> None:
    found = search(plan(trials=trials), tmp_path / "out")
    assert [trial.phase for trial in found.trials].count("done") == 1


def test_a_search_on_several_cores_gives_every_core_work(tmp_path: Path) -> None:
    found = search(plan(trials=20), tmp_path / "out", jobs=4)
    assert len(found.trials) == 20
    assert all(trial.scores for trial in found.trials)
    assert any(trial.phase == "done" for trial in found.trials)


def test_two_seeds_make_one_trial(tmp_path: Path) -> None:
    found = search(plan(seeds=2, trials=3), tmp_path / "out", jobs=2)
    assert sum(path.is_dir() for path in (tmp_path / "out" / "runs").iterdir()) == 6
    assert [trial.phase for trial in found.trials].count("done") == 1


def test_a_trial_that_reaches_the_target_is_done_at_once(tmp_path: Path) -> None:
    found = search(plan(metric="time_to_5", trials=9), tmp_path / "out")
    done = [trial for trial in found.trials if trial.phase == "done"]
    assert any(len(trial.scores) == 1 for trial in done)
    assert all(trial.scores[-1] < 91 for trial in done)
    tuning = summarised(found.plan, found.trials, tmp_path / "out")
    values = [tuning.value(row) for row in tuning.rows if row.cost is not None]
    assert values == sorted(values, key=float)  # type: ignore[arg-type]
    write_results(found.plan, tuning, found.trials, tmp_path / "out")
    assert "time_to_5" in (tmp_path / "out" / "table.csv").read_text()


def test_the_budget_stops_it_and_a_longer_one_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 1.0)
    monkeypatch.setattr("cabafl.comparison.tuning.search.time.monotonic", lambda: next(clock))
    first = search(plan(trials=None, budget=100.0), tmp_path / "out")
    assert 0 < len(first.trials) < 60
    again = search(plan(trials=None, budget=100.0), tmp_path / "out")
    assert known(again) == known(first)  # the time is used up
    longer = search(plan(trials=None, budget=200.0), tmp_path / "out")
    assert len(longer.trials) > len(first.trials)
    assert [trial.values for trial in longer.trials[: len(first.trials)]] == [trial.values for trial in first.trials]


class Killed(BaseException):
    """The process is gone."""


CHANGES = ["create_new_trial", "set_trial_user_attr", "set_trial_intermediate_value", "set_trial_state_values"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("seed", range(3))
def test_a_search_killed_at_any_change_ends_the_same(
    seed: int, after: bool, whole: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one core the search is deterministic, so that a killed one must find the same trials and scores. Killed
    before or after changes of the study at random."""
    draw, left = random.Random(seed), 0

    def fragile(name: str) -> None:
        change = getattr(RDBStorage, name)

        def maybe(self: RDBStorage, *given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0 and not after:
                raise Killed
            result = change(self, *given, **named)
            if left == 0:
                raise Killed
            return result

        monkeypatch.setattr(RDBStorage, name, maybe)

    for name in CHANGES:
        fragile(name)
    kills = 0
    while kills < 8:
        left = draw.randint(1, 6)
        with contextlib.suppress(Killed):
            search(plan(trials=9), tmp_path / "parts")
            break
        kills += 1
    assert kills > 4
    left = 0
    assert known(search(plan(trials=9), tmp_path / "parts")) == known(whole)


def test_a_failing_trial_does_not_stop_the_search(tmp_path: Path) -> None:
    def work(run: GridRun) -> None:
        if quality(run) < 0.5:
            run.failure = "diverged"
        else:
            carry_out(run)

    found = search(plan(trials=9), tmp_path / "out", work)
    assert {trial.failure for trial in found.trials} == {"", "diverged"}
    assert any(trial.phase == "done" for trial in found.trials)
    again = search(plan(trials=9), tmp_path / "out", work)
    assert known(again) == known(found)  # not tried again
    tuning = summarised(found.plan, found.trials, tmp_path / "out")
    write_results(found.plan, tuning, found.trials, tmp_path / "out")
    assert "failed: diverged" in (tmp_path / "out" / "table.md").read_text()


def test_a_search_of_which_every_trial_fails_ends_soon(tmp_path: Path) -> None:
    def work(run: GridRun) -> None:
        run.failure = "no data"

    found = search(plan(trials=None, budget=3600.0), tmp_path / "out", work)
    assert (found.broken, len(found.trials)) == ("no data", 3)


def test_values_that_do_not_go_together_fail_that_trial_only(tmp_path: Path) -> None:
    settings = [*SETTINGS[2:], "data.devices=20,10", "fleet.slots=5,15"]
    found = search(plan(*settings, trials=9), tmp_path / "out")
    failed = [trial.values for trial in found.trials if trial.phase == "failed"]
    assert failed == [{"data.devices": "10", "fleet.slots": "15"}]
    assert len(found.trials) == 4  # all there are


def test_no_point_is_tried_twice_and_a_small_space_ends(tmp_path: Path) -> None:
    found = search(
        plan(*SETTINGS[2:], "method.k=1..5", "method.selection=balanced,random", trials=50), tmp_path / "out"
    )
    points = [tuple(trial.values.values()) for trial in found.trials]
    assert len(points) == len(set(points)) == 10


def test_points_depend_on_seed_number_and_results_only() -> None:
    found = plan()
    trials = [Trial(n, {"training.learning_rate": 0.002 * (n + 1), "method.k": n + 1}) for n in range(12)]
    one, other = (propose(found.space, trials, 1, found.metric) for _ in range(2))
    assert one == other
    assert propose(found.space, trials, 2, found.metric) != one
    assert propose(found.space, trials[:11], 1, found.metric) != one
    assert propose(found.space, [], 1, found.metric) == {"training.learning_rate": 0.01, "method.k": 10}


def test_the_key_that_matters_is_found(tmp_path: Path) -> None:
    found = search(plan(trials=27), tmp_path / "out")
    shares = importances(found.plan.space, found.trials, found.plan.metric)
    assert max(shares, key=lambda key: shares[key]) == "training.learning_rate"
    assert sum(shares.values()) == pytest.approx(1)
    assert importances(found.plan.space, found.trials[:9], found.plan.metric) == {}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"settings": ["training.learning_rate=0.001..0.2", *SETTINGS[1:]]},
            r"^training\.learning_rate = 0\.001\.\.0\.2: ",
        ),
        ({"settings": SETTINGS[1:]}, r"^training\.learning_rate = "),
        ({"settings": [*SETTINGS, "data.beta=0.1"]}, r"^data\.beta = 0\.1: the search in .* has 0\.5; accepted"),
        ({"settings": [*SETTINGS, "seed=2"]}, r"^seed = 2"),
        ({"metric": "time_to_5"}, r"^--metric = time_to_5: the search in .* has accuracy"),
        ({"rungs": 2}, r"^--rungs = 2"),
        ({"seeds": 2}, r"^--seeds = 2"),
    ],
)
def test_another_search_in_the_same_folder_is_refused(
    change: dict[str, Any], says: str, one_trial: Path, tmp_path: Path
) -> None:
    shutil.copytree(one_trial, tmp_path / "out")
    settings = change.pop("settings", SETTINGS)
    with pytest.raises(UserError, match=says):
        search(plan(*settings, **change), tmp_path / "out")
    assert len(search(plan(*SETTINGS, "run.workers=2", trials=2), tmp_path / "out").trials) == 2  # changes no result


def test_a_run_that_was_removed_is_reported_in_one_line(tmp_path: Path) -> None:
    found = search(plan(trials=2), tmp_path / "out")
    metrics = tmp_path / "out" / "runs" / "trial-0001-seed1" / "metrics.csv"
    metrics.write_text(metrics.read_text().splitlines()[0] + "\n")
    with pytest.raises(UserError, match="without evaluations"):
        summarised(found.plan, found.trials, tmp_path / "out")
    metrics.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        summarised(found.plan, found.trials, tmp_path / "out")


def test_folders_with_something_else(tmp_path: Path) -> None:
    about = plan().about()
    (tmp_path / "report.html").write_text("")
    with pytest.raises(UserError, match="holds something else"):
        open_store(tmp_path, about, False)
    (tmp_path / "report.html").rename(tmp_path / STUDY)
    with pytest.raises(UserError, match="not the study of a search"):
        open_store(tmp_path, about, False)
    (tmp_path / STUDY).write_text("garbage" * 1000)
    with pytest.raises(UserError, match="not the study of a search"):
        open_store(tmp_path, about, False)


def test_a_study_that_was_half_made_is_made_again(tmp_path: Path) -> None:
    out = tmp_path / "50% of?what#"
    out.mkdir()
    (out / f".{STUDY}.part").write_bytes(b"SQLite format 3\x00 half")
    (out / f".{STUDY}.part-journal").write_bytes(b"half")
    open_store(out, plan().about(), False).close()
    assert [path.name for path in out.iterdir()] == [STUDY]
