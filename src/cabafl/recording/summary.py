"""What ``summary.json`` says."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cabafl.recording.events import Evaluated
from cabafl.recording.metrics import WINDOW, best_window_mean, fairness, stability


def summarise(
    rows: list[Evaluated],
    selections: npt.NDArray[np.int64],
    losses: Mapping[str, int],
    slowed: int,
    staleness: Mapping[int, int],
) -> dict[str, Any]:
    """Everything that does not depend on the machine."""
    accuracy = [row.accuracy for row in rows]
    best = best_window_mean(accuracy)
    last = rows[-1]
    uploads = sum(staleness.values())
    return {
        "best_window_mean": best[0] if best else None,
        "best_window_deviation": best[1] if best else None,
        "window": WINDOW,
        "best_accuracy": max(accuracy),
        "final_accuracy": last.accuracy,
        "final_loss": last.loss,
        "stability": stability(accuracy),
        "fairness": fairness(selections.tolist()),
        "evaluations": len(rows),
        "virtual_time": last.virtual_time,
        "aggregations": last.version,
        "downloads": last.downloads,
        "uploads": last.uploads,
        "feature_downloads": last.feature_downloads,
        "transfers": last.transfers,
        "bytes": last.bytes,
        "joules": last.joules,
        "losses": dict(sorted(losses.items())),
        "slowed": slowed,
        "mean_staleness": sum(s * n for s, n in staleness.items()) / uploads if uploads else None,
        "max_staleness": max(staleness, default=None),
    }
