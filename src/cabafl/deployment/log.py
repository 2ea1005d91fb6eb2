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
MOST_WORDINGS = 10  # different complaints about one device in that time; more are one complaint
OTHERS = "other complaints about this device"


def printable(text: str) -> str:
    """The text of a device without anything that could forge a line or speak to a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


class Log:
    """Writes one line per call. A warning that repeats is written once and counted; a device whose messages cause ever
    new ones does not fill the log."""

    def __init__(
        self, form: LogFormat = "text", file: IO[str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.form = form
        self.file = file or sys.stderr
        self.clock = clock
        self._complaints: dict[tuple[int | None, str], tuple[float, int]] = {}  # time last written, times since
        self._wordings: dict[int, tuple[float, int]] = {}  # by device: since when, how many

    def info(self, text: str, device: int | None = None, **facts: Any) -> None:
        """Something that happens in every run."""
        self._write("info", text, device, facts)

    def warn(self, text: str, device: int | None = None, **facts: Any) -> None:
        """Something an operator may want to look into."""
        now = self.clock()
        text = self._wording(text, device, now)
        key = device, text
        written, count = self._complaints.get(key, (None, 0))
        if written is not None and now - written < REPEAT_AFTER:
            self._complaints[key] = written, count + 1
            return
        if len(self._complaints) > 10_000:  # texts from devices must not fill the memory
            self._complaints.clear()
        self._complaints[key] = now, 0
        self._write("warning", text, device, facts | ({"repeated": count} if count else {}))

    def _wording(self, text: str, device: int | None, now: float) -> str:
        if device is None or (device, text) in self._complaints:
            return text
        since, count = self._wordings.get(device, (now, 0))
        if now - since >= REPEAT_AFTER:
            since, count = now, 0
        if count >= MOST_WORDINGS:
            return OTHERS
        self._wordings[device] = since, count + 1
        return text

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
