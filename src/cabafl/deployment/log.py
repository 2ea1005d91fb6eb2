"""The log of a server or device: time, level and device on every line, as text or JSON."""

import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import IO, Any, Literal

LogFormat = Literal["text", "json"]
REPEAT_AFTER = 600.0  # seconds until the same complaint is written again, with how often it came meanwhile
MOST_COMPLAINTS = 20  # about one device in that time: one that sends ever new nonsense must not fill the disk


def printable(text: str) -> str:
    """The text of a device without anything that could forge a line or speak to a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


class Log:
    """Writes one line per call. A warning that repeats is written once and counted, and there are only so many about
    one device."""

    def __init__(
        self, form: LogFormat = "text", file: IO[str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.form = form
        self.file = file or sys.stderr
        self.clock = clock
        self._lines: dict[int, tuple[float, int]] = {}  # device: since when, and how many complaints about it
        self._complaints: dict[tuple[int | None, str], tuple[float, int]] = {}  # time last written, times since

    def info(self, text: str, device: int | None = None, **facts: Any) -> None:
        """Something that happens in every run."""
        self._write("info", text, device, facts)

    def warn(self, text: str, device: int | None = None, **facts: Any) -> None:
        """Something an operator may want to look into."""
        now, key = self.clock(), (device, text)
        written, count = self._complaints.get(key, (None, 0))
        if written is not None and now - written < REPEAT_AFTER:
            self._complaints[key] = written, count + 1
            return
        if device is not None and not self._within_bounds(device, now):
            return
        if len(self._complaints) > 10_000:  # texts from devices must not fill the memory
            self._complaints.clear()
        self._complaints[key] = now, 0
        self._write("warning", text, device, facts | ({"repeated": count} if count else {}))

    def _within_bounds(self, device: int, now: float) -> bool:
        began, count = self._lines.get(device, (now, 0))
        if now - began >= REPEAT_AFTER:
            began, count = now, 0
        self._lines[device] = began, count + 1
        if count == MOST_COMPLAINTS:
            self._write("warning", "more complaints about it are left out for some minutes", device, {})
        return count < MOST_COMPLAINTS

    def _write(self, level: str, text: str, device: int | None, facts: dict[str, Any]) -> None:
        stamp = datetime.now().astimezone().isoformat(timespec="milliseconds")
        text = printable(text)
        if self.form == "json":
            entry = {"time": stamp, "level": level, "device": device, "text": text, **facts}
            line = json.dumps(entry, default=str)
        else:
            who = "" if device is None else f" device {device}:"
            more = "".join(f" {name}={value}" for name, value in facts.items())
            line = f"{stamp} {level:7}{who} {text}{more}"
        try:
            print(line, file=self.file, flush=True)
        except (OSError, ValueError):
            return  # a closed pipe must not end a run


class LogHandler(logging.Handler):
    """Passes what modules log on to a `Log`."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.INFO)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        """One line; warnings that repeat are counted."""
        (self.log.warn if record.levelno >= logging.WARNING else self.log.info)(record.getMessage())
