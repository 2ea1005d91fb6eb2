"""Weights & Biases: a run in the folder ``wandb`` of the run folder. Nothing goes over the network unless
``WANDB_MODE=online`` asks for it; `wandb sync` sends it later."""

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cabafl.files import write_atomic
from cabafl.loggers.base import SETTINGS, LoggedRun, Logger, final_figures
from cabafl.recording.folder import EXPERIMENT, MODEL, TASK

FOLDER = "wandb"
ID = "cabafl-run-id"
PROJECT = "cabafl"


class WandbLogger(Logger):
    """A run that goes on keeps its id. Offline it is written anew, so that no step is missing or there twice; online it
    continues after the last step that the server has."""

    def begin(self, run: LoggedRun) -> int:
        """Starts the run of the library."""
        assert run.folder is not None
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when the library is imported
        import wandb

        folder = run.folder / FOLDER
        folder.mkdir(exist_ok=True)
        if not (folder / ID).exists():
            write_atomic(folder / ID, secrets.token_hex(4).encode())
        number = (folder / ID).read_text(encoding="utf-8")
        mode = os.environ.get("WANDB_MODE") or "offline"
        if mode == "offline":
            for old in folder.glob(f"offline-run-*-{number}"):
                shutil.rmtree(old)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=run.name,
            id=number,
            resume="allow",
            mode=mode,  # type: ignore[arg-type]  # the library checks it
            dir=str(run.folder),
            config=dict(run.settings),
            settings=wandb.Settings(
                silent=True, console="off", x_disable_stats=True, disable_git=True, disable_code=True, login_timeout=10
            ),
        )
        return 0 if mode == "offline" else self._run.step

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """A value for each column."""
        self._run.log(dict(figures), step=step)

    def finish(self, summary: Mapping[str, Any], model: Path | None) -> None:
        """The figures of the summary as ``final.NAME``; the model and what describes it as files."""
        self._run.summary.update({f"final.{name}": value for name, value in final_figures(summary).items()})
        if model is not None:
            files = Path(self._run.dir)
            for source, name in ((MODEL, MODEL), (TASK, TASK), (EXPERIMENT, SETTINGS)):
                shutil.copyfile(model.with_name(source), files / name)
                self._run.save(str(files / name), base_path=str(files), policy="end")

    def close(self) -> None:
        """Waits until everything is on disk, or with the server."""
        if hasattr(self, "_run"):
            self._run.finish()
