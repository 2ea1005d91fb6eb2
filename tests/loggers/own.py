"""Loggers for tests: each remembers or breaks something."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from cabafl import LoggedRun, Logger


class Remembers(Logger):
    """Keeps all calls; ``known`` is how many evaluations it claims to have."""

    calls: ClassVar[list[tuple[Any, ...]]] = []
    known: ClassVar[int] = 0

    def begin(self, run: LoggedRun) -> int:
        self.calls.append(("begin", run))
        return self.known

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self.calls.append(("log", step, figures))

    def finish(self, summary: Mapping[str, Any], model: Path | None) -> None:
        self.calls.append(("finish", summary, model))

    def close(self) -> None:
        self.calls.append(("close",))

    @classmethod
    def steps(cls) -> list[int]:
        """The steps it was given."""
        return [call[1] for call in cls.calls if call[0] == "log"]


class Slow(Remembers):
    """Takes half a second for each evaluation."""

    calls: ClassVar[list[tuple[Any, ...]]] = []  # of its own: its thread may outlive its run

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        time.sleep(0.5)
        super().log(step, figures)


class _Fails(Logger):
    where = ""

    def _fail(self, where: str) -> None:
        if where == self.where:
            raise OSError(28, f"no space\nleft in {where}")

    def begin(self, run: LoggedRun) -> int:
        self._fail("begin")
        return 0

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._fail("log")

    def finish(self, summary: Mapping[str, Any], model: Path | None) -> None:
        self._fail("finish")

    def close(self) -> None:
        self._fail("close")


class FailsInBegin(_Fails):
    where = "begin"


class FailsInLog(_Fails):
    where = "log"


class FailsInFinish(_Fails):
    where = "finish"


class FailsInClose(_Fails):
    where = "close"


class FailsWhenMade(Logger):
    def __init__(self) -> None:
        raise RuntimeError("left in init")


class Quits(Logger):
    """Thinks it is alone."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        sys.exit("left in log")


class Forgets(Logger):
    """Its `begin` returns nothing."""

    def begin(self, run: LoggedRun) -> int:
        return None  # type: ignore[return-value]

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Never called."""


class Misses(Logger):
    """Has no `log`."""


def something(run: LoggedRun) -> int:
    """Not a class."""
    return 0
