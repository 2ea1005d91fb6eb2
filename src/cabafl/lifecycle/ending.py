"""What ends a run before its time: a metric that is good enough, or no longer improves; a budget; a request."""

import math
from pathlib import Path
from typing import Literal

from cabafl.config import RunSection
from cabafl.recording.events import Evaluated

REQUEST = "finish.request"  # in the run folder of a simulation: `cabafl finish` asks the process that writes it to end
Reason = Literal["stop_at", "patience", "wall_time", "finish"]


class Ending:
    """Decides whether a run is to end now; ``reason`` says why, None if it is not.

    Evaluations count in the order of the run, so that the decision is the same in every repetition and after a resume.
    The model that counts is the averaged one, if there is one. A budget of wall time depends on the machine.
    """

    def __init__(self, run: RunSection, folder: Path | None = None) -> None:
        self.reason: Reason | None = None
        self._target, self._patience, self._budget = run.stop_at, run.patience, run.wall_time
        self._request = None if folder is None else folder / REQUEST
        self._best: float | None = None
        self._since = 0  # evaluations after the best one

    @property
    def by_evaluation(self) -> bool:
        """Whether an evaluation can end the run."""
        return self._target is not None or self._patience is not None

    def see(self, row: Evaluated) -> None:
        """Takes in an evaluation."""
        value = row.value if row.averaged_value is None else row.averaged_value
        if math.isnan(value):
            return  # neither better nor worse
        sign = 1.0 if row.metric.more_is_better else -1.0
        better = self._best is None or sign * value > sign * self._best
        self._best = value if better else self._best
        self._since = 0 if better else self._since + 1
        if self._target is not None and sign * value >= sign * self._target:
            self._end("stop_at")
        elif self._patience is not None and self._since >= self._patience:
            self._end("patience")

    def look(self, wall_seconds: float) -> None:
        """Looks at the clock on the wall and for a request; ``wall_seconds`` since the run began."""
        if self._budget is not None and wall_seconds >= self._budget:
            self._end("wall_time")
        elif self._request is not None and self._request.exists():
            self._end("finish")

    def _end(self, reason: Reason) -> None:
        self.reason = self.reason or reason
