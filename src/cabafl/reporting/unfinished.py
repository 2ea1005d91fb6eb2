"""Runs that are not finished, in a report: their figures so far, from what they have recorded."""

from pathlib import Path
from typing import Any

from cabafl.config import Experiment, load_experiment
from cabafl.errors import UserError
from cabafl.recording.events import Evaluated
from cabafl.recording.folder import EVENTS, EXPERIMENT, JOURNAL, complete_metrics
from cabafl.recording.metrics import fairness, metric_figures
from cabafl.reporting.trace import Counts, count_events

MARK = "unfinished"
USUAL_DEVICES = 100  # data.devices = auto, unless the data have users


def read_unfinished(folder: Path) -> tuple[Experiment, list[Evaluated], dict[str, Any]] | None:
    """Experiment, evaluations and summary so far; None if nothing was evaluated yet. Raises `UserError` if the folder
    is damaged."""
    experiment = load_experiment(folder / EXPERIMENT)
    try:
        rows = complete_metrics(folder)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: not a readable run folder: {error}") from None
    if not rows:
        return None
    return experiment, rows, _summary(folder, experiment, rows, count_events(folder / EVENTS))


def _summary(folder: Path, experiment: Experiment, rows: list[Evaluated], counts: Counts) -> dict[str, Any]:
    last, uploads = rows[-1], counts.staleness.total()
    devices = _devices(experiment, counts)
    return {
        "method": experiment.method.name,
        "seed": experiment.seed,
        "clock": "wall" if (folder / JOURNAL).exists() else "virtual",
        **metric_figures(rows),
        f"final_{last.metric.name}": last.value,
        **{f"final_{name}": value for name, value in last.more},
        "fairness": fairness([counts.selections[device] for device in range(devices)]),
        "mean_staleness": sum(k * n for k, n in counts.staleness.items()) / uploads if uploads else None,
        "versions": last.version,
        "time": last.time,
        "losses": dict(sorted(counts.losses.items())),
        "wall_seconds": None,
        MARK: True,
    }


def _devices(experiment: Experiment, counts: Counts) -> int:
    if experiment.data.devices != "auto":
        return experiment.data.devices
    usual = 0 if experiment.data.partition == "natural" else USUAL_DEVICES
    return max([usual, *(device + 1 for device in counts.selections)])
