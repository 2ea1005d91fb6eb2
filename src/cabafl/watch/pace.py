"""How fast a run goes, as seen from outside."""

from collections import deque
from typing import NamedTuple

REMEMBERED = 300.0  # seconds
RECENT = 60.0  # seconds


class PaceSample(NamedTuple):
    """What a run had done at a moment."""

    at: float  # seconds of the monotonic clock
    uploads: int
    events: int
    progress: float | None


class Pace:
    """The last minutes of a run that goes on."""

    def __init__(self) -> None:
        self._samples: deque[PaceSample] = deque()

    def see(self, sample: PaceSample) -> None:
        """Called at every look, whether there was something new or not."""
        if self._samples and sample.uploads < self._samples[-1].uploads:
            self._samples.clear()  # rewound
        self._samples.append(sample)
        while self._samples[0].at < sample.at - REMEMBERED:
            self._samples.popleft()

    def forget(self) -> None:
        """The run does not go on."""
        self._samples.clear()

    def rates(self) -> tuple[float | None, float | None]:
        """Uploads and events per second in the last minute; None if it was not seen long enough."""
        first, last = self._window(RECENT)
        if first is None or last is None:
            return None, None
        seconds = last.at - first.at
        return (last.uploads - first.uploads) / seconds, (last.events - first.events) / seconds

    def left(self) -> float | None:
        """Seconds to the end, by the last minutes; None if that cannot be said."""
        first, last = self._window(REMEMBERED)
        if first is None or last is None or first.progress is None or last.progress is None:
            return None
        speed = (last.progress - first.progress) / (last.at - first.at)
        return (1.0 - last.progress) / speed if speed > 0 else None

    def _window(self, seconds: float) -> tuple[PaceSample | None, PaceSample | None]:
        if not self._samples:
            return None, None
        last = self._samples[-1]
        first = next(sample for sample in self._samples if sample.at >= last.at - seconds)
        return (first, last) if last.at - first.at >= 2.0 else (None, None)
