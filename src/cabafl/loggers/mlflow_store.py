"""MLflow: a run in the store that ``MLFLOW_TRACKING_URI`` names, otherwise in a database of the run folder's own."""

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from cabafl.files import as_json, write_atomic
from cabafl.loggers.base import SETTINGS, LoggedRun, Logger, as_text, final_figures
from cabafl.recording.folder import CURVE, EXPERIMENT, SUMMARY, TASK

FOLDER = "mlflow"
DATABASE = "mlflow.db"
ARTIFACTS = "artifacts"
ENTRY = "run.json"  # which run of which store this one is
EXPERIMENT_NAME = "cabafl"
PARAMS_AT_ONCE, METRICS_AT_ONCE = 100, 800  # MLflow takes 100 and 1,000
INTERVAL = 1.0  # seconds between two transactions, at least: one takes milliseconds, of a server more


class MlflowLogger(Logger):
    """A run that goes on continues after the last step that the store has."""

    def begin(self, run: LoggedRun) -> int:
        """Makes the run in the store, or finds it there."""
        assert run.folder is not None
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)  # they announce every table of a new database
        self._run, self._step, self._finished = run, 0, False
        self._waiting: list[Metric] = []
        self._written = 0.0
        folder = run.folder / FOLDER
        folder.mkdir(exist_ok=True)
        known = _entry(folder / ENTRY)
        uri = known.get("uri") or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / DATABASE}"
        self._client = MlflowClient(tracking_uri=uri)
        if known:
            self._id = known["run_id"]
            self._client.update_run(self._id, status="RUNNING")
            return 1 + max((metric.step for metric in self._client.get_metric_history(self._id, "time")), default=-1)
        self._create(folder, uri)
        return 0

    def _create(self, folder: Path, uri: str) -> None:
        run, own = self._run, uri == f"sqlite:///{folder / DATABASE}"
        place = (folder / ARTIFACTS).as_uri() if own else None
        made = self._client.create_run(self._experiment(place), int(1000 * run.started), run_name=run.name)
        self._id = made.info.run_id
        settings = [Param(key, as_text(value)) for key, value in run.settings.items()]
        for start in range(0, len(settings), PARAMS_AT_ONCE):
            self._client.log_batch(self._id, params=settings[start : start + PARAMS_AT_ONCE])
        write_atomic(folder / ENTRY, as_json({"uri": uri, "run_id": self._id}))

    def _experiment(self, place: str | None) -> str:
        """MLflow's own kind of experiment, which groups runs: ``MLFLOW_EXPERIMENT_NAME``, or `EXPERIMENT_NAME`."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT_NAME
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=place))
            except MlflowException:  # another run has just made it
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """A metric for each column."""
        self._step = step
        self._add(figures, figures["time"])
        if len(self._waiting) >= METRICS_AT_ONCE or time.monotonic() - self._written > INTERVAL:
            self._write()

    def finish(self, summary: Mapping[str, Any], model: Path | None) -> None:
        """The figures of the summary as ``final.NAME``; the model and what describes it as artifacts."""
        final = {f"final.{name}": value for name, value in final_figures(summary).items()}
        self._add(final, float(summary["time"]))
        self._write()
        if model is not None:
            for path in (model, *(model.with_name(name) for name in (TASK, SUMMARY, CURVE))):
                self._client.log_artifact(self._id, str(path))
            self._client.log_text(self._id, model.with_name(EXPERIMENT).read_text(encoding="utf-8"), SETTINGS)
        self._finished = True

    def close(self) -> None:
        """Says whether the run is complete."""
        if hasattr(self, "_id"):
            self._write()
            self._client.set_terminated(self._id, "FINISHED" if self._finished else "KILLED")

    def _add(self, figures: Mapping[str, float], seconds: float) -> None:
        stamp = int(1000 * (self._run.started + seconds))
        self._waiting += [Metric(key, value, stamp, self._step) for key, value in figures.items()]

    def _write(self) -> None:
        """Steps are written whole: those that a kill loses are logged again after a resume."""
        waiting, self._waiting = self._waiting, []
        self._written = time.monotonic()
        if waiting:
            self._client.log_batch(self._id, waiting)


def _entry(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return found
