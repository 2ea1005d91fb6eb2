"""What a run tells its loggers about itself."""

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from cabafl.checked import make_method
from cabafl.config import Experiment
from cabafl.loggers.base import LoggedRun
from cabafl.recording.folder import ENVIRONMENT
from cabafl.toml import flatten


def logged_run(experiment: Experiment, folder: Path | None, clock: str) -> LoggedRun:
    """The description of a run, with the method's own defaults among its settings."""
    tables: dict[str, Any] = experiment.model_dump()
    tables["method"] |= make_method(experiment).parameters.model_dump()
    name = f"{experiment.method.name}-seed{experiment.seed}" if folder is None else folder.resolve().name
    return LoggedRun(name, None if folder is None else folder.resolve(), flatten(tables), clock, _started(folder))


def _started(folder: Path | None) -> float:
    """As the run folder says; otherwise now."""
    if folder is None:
        return time.time()
    try:
        return datetime.fromisoformat(json.loads((folder / ENVIRONMENT).read_text())["started"]).timestamp()
    except (OSError, ValueError, KeyError, TypeError):
        return time.time()
