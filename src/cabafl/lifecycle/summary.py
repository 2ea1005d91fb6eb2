"""The content of ``summary.json``: the figures of a whole run."""

from typing import Any

import numpy as np

from cabafl.config import Experiment
from cabafl.engine.core import Engine
from cabafl.learning.dp import DpSgd, epsilon
from cabafl.recording.events import Evaluated
from cabafl.recording.metrics import WINDOW, averaged_rows, fairness, metric_figures


def summarise(
    experiment: Experiment, engine: Engine, rows: list[Evaluated], wall_seconds: float, ended_by: str | None = None
) -> dict[str, Any]:
    """In a simulation, everything but ``wall_seconds`` is the same in every repetition. ``ended_by``: the reason, if
    the run ended before its time."""
    last, ledger = rows[-1], engine.ledger
    dp = DpSgd.of(experiment.privacy)
    spent = {} if dp is None else {"epsilon": _epsilon(experiment, engine, dp)}
    return {
        "method": experiment.method.name,
        "seed": experiment.seed,
        "clock": engine.clock,
        "metric": last.metric.described(),
        "window": WINDOW,
        **_figures(rows),
        **{f"final_{name}": value for name, value in last.more},
        "fairness": fairness(engine.selections.tolist()),
        "evaluations": len(rows),
        "time": last.time,
        "versions": last.version,
        "downloads": last.downloads,
        "uploads": last.uploads,
        "feature_downloads": last.feature_downloads,
        "transfers": last.transfers,
        "bytes": last.bytes,
        "joules": last.joules,
        "idle_joules": ledger.idle_joules,
        "losses": dict(sorted(ledger.losses.items())),
        "slowed": ledger.slowed,
        "mean_staleness": ledger.mean_staleness,
        "max_staleness": max(ledger.staleness, default=None),
        "defence": engine.defence.totals(),
        **_of_average(experiment, rows),
        **_of_best(engine),
        **({} if ended_by is None else {"ended_by": ended_by}),
        **_of_devices(engine),
        **spent,
        **_by_operator(engine),
        "wall_seconds": wall_seconds,
    }


def _of_average(experiment: Experiment, rows: list[Evaluated]) -> dict[str, Any]:
    """The figures of the averaged model, if there is one; the others are of the published models."""
    if experiment.run.average is None:
        return {}
    return {"averaged": _figures(averaged_rows(rows))}


def _figures(rows: list[Evaluated]) -> dict[str, Any]:
    """The figures of the metric and the loss; the names of some have the metric's name in them."""
    metric = rows[0].metric
    return {
        **metric_figures(rows),
        f"best_{metric.name}": metric.best(row.value for row in rows),
        f"final_{metric.name}": rows[-1].value,
        "final_loss": rows[-1].loss,
    }


def _of_best(engine: Engine) -> dict[str, Any]:
    """Which model is the best evaluated one, if it is kept."""
    best = engine.outbox.best
    return {} if best is None else {"best_version": best.version, "best_time": best.time}


def _of_devices(engine: Engine) -> dict[str, Any]:
    """The metric of each device that was evaluated at the end, if any."""
    panel = engine.panel
    if panel is None:
        return {}
    samples = "test" if panel.of_test else "training"
    return {"devices": {"samples": samples, "numbers": panel.devices.tolist(), "values": list(engine.device_values)}}


def _by_operator(engine: Engine) -> dict[str, Any]:
    """What the operator of a run on real devices did, if anything."""
    changes = {"changes": engine.changes} if engine.changes else {}
    return changes | ({} if engine.stopping == "no" else {"stopped": engine.stopping})


def _epsilon(experiment: Experiment, engine: Engine, dp: DpSgd) -> float:
    """Epsilon of the device with the largest steps * rate^2, where rate is the share of its samples in a step."""
    training = experiment.training
    sizes = np.maximum(engine.defence.claimed, 1)
    per_job = training.epochs * np.maximum(1, np.ceil(sizes / training.batch_size)).astype(np.int64)
    steps = engine.selections * (per_job if training.max_steps is None else np.minimum(per_job, training.max_steps))
    most = int(np.argmax(steps * np.minimum(1.0, training.batch_size / sizes) ** 2))
    return epsilon(dp, int(sizes[most]), training.batch_size, int(steps[most]), experiment.privacy.dp_delta)
