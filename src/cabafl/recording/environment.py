"""The software and hardware a run used."""

import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from cabafl.recording.scale import ACCURACY, MetricInfo


def environment(clock: str = "virtual", metric: MetricInfo = ACCURACY) -> dict[str, Any]:
    """Returns the content of ``environment.json``; ``clock`` is virtual or wall, ``metric`` what the run is judged
    by."""
    import torch

    return {
        "cabafl": version("cabafl"),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "platform": platform.platform(),
        "processor": _processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "clock": clock,
        "metric": metric.described(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    """The processor's model name: floating-point results may differ between models."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
