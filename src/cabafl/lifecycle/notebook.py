"""Live progress and learning curve of a simulation in a Jupyter notebook: a listener that draws into the cell."""

import html
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from cabafl.config import Experiment
from cabafl.execution.base import Warn
from cabafl.lifecycle.run import Listener
from cabafl.lifecycle.stopping import Paused
from cabafl.recording.events import Dispatched, Evaluated, Event, Published, Uploaded
from cabafl.recording.folder import complete_metrics

INTERVAL = 0.5  # seconds between two drawings, at least
WIDTH, HEIGHT, LEFT, BOTTOM = 560, 200, 52, 26  # of the curve, in pixels; of its margins
MOST_POINTS = 400  # of the curve; more are thinned out
_COLOURS = ("#1f77b4", "#ff7f0e")  # published and averaged model


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook. Imports nothing."""
    shell = sys.modules.get("IPython")
    made = None if shell is None else shell.get_ipython()
    return getattr(made, "kernel", None) is not None


@contextmanager
def attended(
    experiment: Experiment, folder: str | Path | None, listener: Listener | None, warn: Warn | None
) -> Iterator[tuple[Listener | None, Warn | None]]:
    """Who listens to a run and its warnings: in a notebook without a ``listener``, a `NotebookProgress`."""
    if listener is not None or not in_notebook():
        yield listener, warn
        return
    with NotebookProgress(experiment, folder) as progress:
        yield progress, warn or progress.warn


class NotebookProgress:
    """Shows a bar, the figures and the curve in the output of the cell, and warnings below it.

    ``folder`` may hold a run that goes on: its evaluations so far begin the curve.
    """

    def __init__(self, experiment: Experiment, folder: str | Path | None) -> None:
        run = experiment.run
        self._title = f"{experiment.method.name} on {experiment.data.dataset}, seed {experiment.seed}"
        self._folder = folder
        self._by_dispatches = run.max_dispatches is not None and run.virtual_time is None
        self._total = float((run.max_dispatches if self._by_dispatches else run.virtual_time) or 1)
        self._dispatches = self._uploads = self._versions = 0
        self._jobs = 0  # of this process
        self._rows = _earlier(folder)
        self._warnings: list[str] = []
        self._time = self._rows[-1].time if self._rows else 0.0
        self._state = "starts"
        self._began = time.perf_counter()
        self._drawn = 0.0
        self._handle: Any = None

    def __enter__(self) -> "NotebookProgress":
        from IPython.display import display

        self._handle = display(self, display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = kind is not None and issubclass(kind, KeyboardInterrupt | Paused)
        self._state = "complete" if kind is None else "stopped" if stopped else "failed"
        self._draw()

    def __call__(self, event: Event) -> None:
        """Counts the event; draws at most twice a second."""
        kind = type(event)
        if kind is Uploaded:
            self._uploads += 1
            self._jobs += 1
        elif kind is Dispatched:
            self._dispatches += 1
        elif kind is Published:
            self._versions += 1
        elif isinstance(event, Evaluated):
            self._rows = [*(row for row in self._rows if row.time < event.time), event]  # a resume repeats some
            self._dispatches, self._uploads, self._versions = event.downloads, event.uploads, event.version
        else:
            return
        self._time = event.time
        if time.perf_counter() - self._drawn > INTERVAL:
            self._state = "runs"
            self._draw()

    def warn(self, text: str) -> None:
        """Shows a warning."""
        self._warnings.append(text)
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.perf_counter()
        if self._handle is not None:
            self._handle.update(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """What a notebook shows: HTML, or plain text where that cannot be."""
        return {"text/plain": self._text(), "text/html": self._html()}

    @property
    def _done(self) -> float:
        return min(1.0, (self._dispatches if self._by_dispatches else self._time) / self._total)

    def _figures(self) -> str:
        parts = [f"t = {self._time:,.0f} s", f"{self._uploads:,} uploads", f"{self._versions:,} versions"]
        if self._rows:
            last, metric = self._rows[-1], self._rows[-1].metric
            parts.append(f"{metric.title} {metric.text(last.value, 1)}{metric.unit}")
            if last.averaged_value is not None:
                parts.append(f"averaged {metric.text(last.averaged_value, 1)}{metric.unit}")
        parts.append(f"{self._jobs / max(time.perf_counter() - self._began, 1e-9):.1f} jobs/s")
        return ", ".join(parts)

    def _advice(self) -> str:
        if self._state != "stopped":
            return ""
        return "nothing was kept (no out)" if self._folder is None else f'continue with resume("{self._folder}")'

    def _text(self) -> str:
        lines = [f"{self._title}: {self._state}, {100 * self._done:.0f} %", self._figures(), self._advice()]
        return "\n".join(line for line in [*lines, *(f"warning: {text}" for text in self._warnings)] if line)

    def _html(self) -> str:
        title, state, figures = map(html.escape, (self._title, self._state, self._figures()))
        notes = [self._advice(), *(f"warning: {text}" for text in self._warnings)]
        below = "".join(f"<div>{html.escape(note)}</div>" for note in notes if note)
        return (
            f'<div style="font-family:sans-serif;font-size:13px;max-width:{WIDTH}px">'
            f'<div><b>{title}</b>: {state} <progress value="{self._done:.4f}" max="1" style="width:12em"></progress> '
            f"{100 * self._done:.0f} %</div><div>{figures}</div>{_curve(self._rows)}{below}</div>"
        )


def _earlier(folder: str | Path | None) -> list[Evaluated]:
    """The evaluations in a run folder; none if there is no such folder, or it cannot be read."""
    try:
        return [] if folder is None else complete_metrics(Path(folder))
    except (OSError, ValueError):
        return []


def _curve(rows: Sequence[Evaluated]) -> str:
    """The metric over time, as SVG; nothing with fewer than two evaluations."""
    if len(rows) < 2:
        return ""
    metric = rows[0].metric
    thinned = [*rows[: -1 : -(-len(rows) // MOST_POINTS)], rows[-1]]
    times = [row.time for row in thinned]
    series = [[metric.factor * row.value for row in thinned]]
    if rows[0].averaged_value is not None:
        series.append([metric.factor * (row.averaged_value or 0.0) for row in thinned])
    finite = [value for values in series for value in values if abs(value) < float("inf")]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    high = high if high > low else low + 1.0
    across, up = _scale(times[0], times[-1], LEFT, WIDTH - 8), _scale(low, high, HEIGHT - BOTTOM, 8)
    lines = "".join(
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.8" points="{_points(times, values, across, up)}"/>'
        for values, colour in zip(series, _COLOURS, strict=False)
    )
    texts = (
        _label(LEFT - 6, up(high) + 10, f"{high:.3g}", "end"),
        _label(LEFT - 6, up(low), f"{low:.3g}", "end"),
        _label(LEFT, HEIGHT - 8, f"{times[0]:,.0f}", "start"),
        _label(WIDTH - 8, HEIGHT - 8, f"{times[-1]:,.0f}", "end"),
        _label((LEFT + WIDTH) / 2, HEIGHT - 8, f"test {metric.label} over time [s]", "middle"),
    )
    frame = f'<path d="M{LEFT} 8V{HEIGHT - BOTTOM}H{WIDTH - 8}" fill="none" stroke="#888"/>'
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg {size} role="img" aria-label="learning curve">{frame}{lines}{"".join(texts)}</svg>'


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _points(
    times: Sequence[float], values: Sequence[float], across: Callable[[float], float], up: Callable[[float], float]
) -> str:
    """Without values that are not finite."""
    pairs = zip(times, values, strict=True)
    return " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in pairs if abs(y) < float("inf"))


def _label(x: float, y: float, text: str, anchor: str) -> str:
    style = 'font-size="11" fill="#888" font-family="sans-serif"'
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" {style}>{html.escape(text)}</text>'
