"""The progress bar of a run: a listener of its events."""

import time
from types import TracebackType

from rich import progress as bars

from cabafl.cli.console import console
from cabafl.config import Experiment
from cabafl.recording.events import Dispatched, Evaluated, Event, Published, Uploaded


class Progress:
    """Shows time, uploads, versions, the metric, speed: a live bar on a terminal, else a line per tenth of the run."""

    def __init__(self, experiment: Experiment, enabled: bool, wall: bool = False) -> None:
        run = experiment.run
        self._by_dispatches = run.max_dispatches is not None
        self._total = float(run.max_dispatches or (run.wall_time if wall else run.virtual_time) or 1)
        self._enabled = enabled
        self._live = enabled and console.is_terminal
        self._dispatches = self._uploads = self._versions = 0
        self._metric = ""
        self._started = self._shown = time.perf_counter()
        self._tenth = -1  # the first line comes with the first evaluation, at time 0
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.TaskProgressColumn(),
            bars.TextColumn("{task.fields[text]}"),
            bars.TimeRemainingColumn(),
            console=console,
            disable=not self._live,
        )
        self._task = self._bar.add_task(experiment.method.name, total=self._total, text="")

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Counts the event; redraws at each evaluation and otherwise at most five times a second."""
        if isinstance(event, Uploaded):
            self._uploads += 1
        elif isinstance(event, Dispatched):
            self._dispatches += 1
        elif isinstance(event, Published):
            self._versions += 1
        elif isinstance(event, Evaluated):
            metric = event.metric
            self._metric = f"{metric.title} {metric.text(event.value, 1)}{metric.unit}  "
            if event.averaged_value is not None:
                self._metric += f"(averaged {metric.text(event.averaged_value, 1)}{metric.unit})  "
        else:
            return
        now = time.perf_counter()
        if isinstance(event, Evaluated) or now - self._shown > 0.2:
            self._shown = now
            self._show(event.time, now)

    def _show(self, reached: float, now: float) -> None:
        done = float(self._dispatches) if self._by_dispatches else reached
        speed = self._uploads / max(now - self._started, 1e-9)
        text = (
            f"t = {reached:,.0f} s  {self._uploads:,} uploads  {self._versions:,} versions  "
            f"{self._metric}{speed:.1f} jobs/s"
        )
        self._bar.update(self._task, completed=done, text=text)
        tenth = int(10 * done / self._total)
        if self._enabled and not self._live and tenth > self._tenth:
            self._tenth = tenth
            console.print(f"{10 * tenth:3d} %  {text}", soft_wrap=True)
