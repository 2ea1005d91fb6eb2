"""How many feature questions a device still answers, remembered over restarts."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from cabafl.deployment.device.terms import AgainstTerms
from cabafl.errors import UserError
from cabafl.files import write_atomic

DAY = 24 * 3600.0  # seconds


class Allowance:
    """At most ``limit`` answers in any 24 hours; None: no limit and no file.

    ``file`` holds the times of the answers. A time in the future, left by a clock that was wrong, counts until its 24
    hours are over: a clock that is set back gives no new answers.
    """

    def __init__(self, file: Path, limit: int | None, clock: Callable[[], float] = time.time) -> None:
        self.file = file
        self.limit = limit
        self._clock = clock
        self._times = [] if limit is None else self._read()
        if limit is not None:
            self._write()  # fails at the start rather than at the first question

    def spend(self) -> None:
        """Counts an answer that is about to be given; raises `AgainstTerms` if it must not be given."""
        if self.limit is None:
            return
        now = self._clock()
        self._times = [then for then in self._times if then > now - DAY]
        if len(self._times) >= self.limit:
            raise AgainstTerms(
                f"feature_questions_per_day = {self.limit}: the device has answered {len(self._times)} in the last 24 "
                "hours; accepted: fewer questions"
            )
        self._times.append(now)
        self._write()  # before the answer leaves: a crash must not make it free

    def _read(self) -> list[float]:
        try:
            found = json.loads(self.file.read_text(encoding="utf-8"))
            if not isinstance(found, list):
                raise ValueError
            return [float(then) for then in found]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"{self.file}: cannot be read: {error.strerror}") from None
        except (ValueError, TypeError):
            raise UserError(f"{self.file}: not a list of times; delete it to begin to count anew") from None

    def _write(self) -> None:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.file, (json.dumps(self._times) + "\n").encode())
        except OSError as error:
            raise UserError(
                f"{self.file}: cannot be written: {error.strerror}; terms.feature_questions_per_day needs it"
            ) from None
