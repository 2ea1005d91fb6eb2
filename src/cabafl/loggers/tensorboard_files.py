"""TensorBoard: one event file in the folder ``tensorboard`` of the run; `tensorboard --logdir runs` shows all runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch.utils.tensorboard import SummaryWriter

from cabafl.loggers.base import LoggedRun, Logger, as_text, final_figures

FOLDER = "tensorboard"


class TensorBoardLogger(Logger):
    """A run that goes on writes its file anew, so that no step is missing or there twice.

    The time of a point is the start of the run plus its ``time``: the axis *Relative* shows the clock of the run.
    """

    def begin(self, run: LoggedRun) -> int:
        """Replaces what an earlier process has written."""
        assert run.folder is not None
        folder = run.folder / FOLDER
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._started = run.started
        self._step, self._time = 0, run.started
        self._writer = SummaryWriter(str(folder))
        lines = [f"    {key} = {as_text(value)}" for key, value in run.settings.items()]  # Markdown: verbatim
        self._text("settings", "\n".join(lines))
        return 0

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """A scalar for each column."""
        self._step, self._time = step, self._started + figures["time"]
        for name, value in figures.items():
            self._scalar(name, value)
        self._writer.flush()

    def finish(self, summary: Mapping[str, Any], model: Path | None) -> None:
        """The figures of the summary below ``final/``; of the model, which TensorBoard cannot keep, the distribution of
        each tensor's values."""
        for name, value in final_figures(summary).items():
            self._scalar(f"final/{name}", value)
        if model is not None:
            self._text("model", f"    {model}")
            for name, tensor in load_file(model).items():
                self._writer.add_histogram(f"model/{name}", tensor.numpy(), self._step, walltime=self._time)

    def close(self) -> None:
        """Writes what is left."""
        if hasattr(self, "_writer"):
            self._writer.close()

    def _scalar(self, name: str, value: float) -> None:
        self._writer.add_scalar(name, value, self._step, walltime=self._time)

    def _text(self, name: str, text: str) -> None:
        self._writer.add_text(name, text, self._step, walltime=self._time)
