"""Passes the evaluations of a run to its loggers, each in a thread of its own: a slow logger delays no run, and one
that fails ends none."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from cabafl.loggers.base import LoggedRun, Logger
from cabafl.loggers.finding import Maker, find_loggers
from cabafl.recording.events import Evaluated

PATIENCE = 60.0  # seconds that the end of a run waits for a logger that is still busy


class _Step(NamedTuple):
    number: int
    row: Evaluated


class _End(NamedTuple):
    summary: Mapping[str, Any]
    model: Path | None


class LoggerThread:
    """One logger and the thread that calls it."""

    def __init__(self, name: str, make: Maker, run: LoggedRun) -> None:
        self.name = name
        self.failure: BaseException | None = None
        self._make, self._run = make, run
        self._queue: SimpleQueue[_Step | _End | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=f"logger {name}", daemon=True)
        self._thread.start()

    def put(self, item: _Step | _End) -> None:
        """Takes at once what the logger gets later."""
        if self.failure is None:
            self._queue.put(item)

    def end(self) -> None:
        """Nothing follows."""
        self._queue.put(None)

    def ended(self, seconds: float) -> bool:
        """Waits so long for the logger to be closed; whether it is."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        logger: Logger | None = None
        try:
            logger = self._make()
            known = logger.begin(self._run)
            if not isinstance(known, int):
                raise TypeError(f"begin returns {known!r}; accepted: how many evaluations the logger has, e.g. 0")
            while (item := self._queue.get()) is not None:
                if isinstance(item, _End):
                    logger.finish(item.summary, item.model)
                elif item.number >= known:
                    logger.log(item.number, dict(zip(item.row.columns, item.row.numbers, strict=True)))
        except BaseException as error:  # also sys.exit, which would end the thread in silence
            self.failure = error
        try:
            if logger is not None:
                logger.close()
        except BaseException as error:
            self.failure = self.failure or error


class LogDesk:
    """All loggers of a run. Called by the run's own thread, which also gives the warnings."""

    def __init__(self, names: Sequence[str], warn: Callable[[str], None] | None) -> None:
        self._names, self._warn = names, warn
        self._threads: list[LoggerThread] = []

    def begin(self, run: LoggedRun, rows: Sequence[Evaluated]) -> None:
        """Starts the loggers. ``rows``: the evaluations from before a resume, which a logger may not have yet."""
        found = find_loggers(self._names, run.folder is not None)
        self._threads = [LoggerThread(name, make, run) for name, make in found.items()]
        for number, row in enumerate(rows):
            self.log(number, row)

    def log(self, number: int, row: Evaluated) -> None:
        """Passes on an evaluation."""
        for thread in self._threads:
            thread.put(_Step(number, row))
        self._report()

    def finish(self, summary: Mapping[str, Any], model: Path | None) -> None:
        """The run is complete."""
        for thread in self._threads:
            thread.put(_End(summary, model))

    def close(self) -> None:
        """Waits for the loggers, all together at most `PATIENCE` seconds; idempotent."""
        for thread in self._threads:
            thread.end()
        give_up = time.monotonic() + PATIENCE
        late = [thread for thread in self._threads if not thread.ended(max(0.0, give_up - time.monotonic()))]
        self._report()
        for thread in late:
            self._say(thread.name, f"has not taken everything {PATIENCE:g} s after the end; what is missing is lost")
        self._threads = []

    def _report(self) -> None:
        """Warns once about each logger that has failed, and forgets it."""
        failed = [thread for thread in self._threads if thread.failure is not None]
        for thread in failed:
            self._threads.remove(thread)
            reason = " ".join(f"{type(thread.failure).__name__}: {thread.failure}".split())[:300]
            self._say(thread.name, f"fails, and the run goes on without it: {reason}")

    def _say(self, name: str, text: str) -> None:
        if self._warn is not None:
            self._warn(f"run.log = {name!r}: {text}")
