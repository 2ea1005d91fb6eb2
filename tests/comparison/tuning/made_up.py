"""Searches whose runs are made up: no process, a curve that is a function of the settings."""

import json
from collections.abc import Callable
from pathlib import Path

from cabafl.comparison.grid import GridRun
from cabafl.comparison.tuning.metric import Metric, parse_metric
from cabafl.comparison.tuning.search import Search, SearchPlan
from cabafl.comparison.tuning.space import parse_space
from cabafl.comparison.tuning.store import open_store
from cabafl.recording.events import Evaluated
from cabafl.toml import experiment_toml

SETTINGS = ["training.learning_rate=0.001..0.1", "method.k=1..20", "run.virtual_time=90", "run.evaluate_every=1"]


def quality(run: GridRun) -> float:
    """Best at a learning rate of 0.03, whatever k is."""
    return 1.0 / (1.0 + abs(run.experiment.training.learning_rate - 0.03) * 50)


def evaluation(time: float, version: int, accuracy: float) -> Evaluated:
    return Evaluated(time, version, accuracy, 0.0, 0, 0, 0, 0, 0, 2 * time)


def carry_out(run: GridRun) -> None:
    """Does what the process of a run does, in no time."""
    from cabafl.checked import make_method

    length = run.experiment.run.virtual_time or 0
    end = length if run.until is None else run.until
    run.folder.mkdir(parents=True, exist_ok=True)
    rows = [evaluation(float(t), t, quality(run) * t / length) for t in range(int(end) + 1)]
    if run.experiment.run.average is not None:  # half as good, so that nobody takes one for the other
        rows = [row._replace(averaged_value=row.value / 2, averaged_loss=0.0) for row in rows]
    text = "\n".join([",".join(rows[0].columns), *(row.row() for row in rows)]) + "\n"
    (run.folder / "metrics.csv").write_text(text)
    (run.folder / "experiment.toml").write_text(experiment_toml(run.experiment, make_method(run.experiment).parameters))
    if run.until is None:
        (run.folder / "summary.json").write_text(json.dumps({"wall_seconds": 1.0}))


def plan(*settings: str, metric: str | Metric = "accuracy", trials: int | None = 9, **options: object) -> SearchPlan:
    chosen = parse_metric(metric) if isinstance(metric, str) else metric
    known = {"rungs": 3, "seeds": 1, **options}
    return SearchPlan(parse_space(None, settings or SETTINGS), chosen, trials=trials, **known)  # type: ignore[arg-type]


def search(found: SearchPlan, out: Path, work: Callable[[GridRun], None] = carry_out, jobs: int = 1) -> Search:
    """Carries out a whole search, the oldest of ``jobs`` runs first."""
    out.mkdir(exist_ok=True)
    store = open_store(out, found.about(), found.metric.lower_is_better)
    try:
        made = Search(found, out, store, lambda _: None)
        made.prepare()
        running: list[GridRun] = []
        while True:
            while len(running) < jobs and (run := made.take(jobs - len(running))) is not None:
                running.append(run)
            if not running or made.poll():
                return made
            work(running[0])
            made.ended(running.pop(0))
    finally:
        store.close()
