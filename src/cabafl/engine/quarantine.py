"""What a server of real devices leaves out when it replays its journal: inputs and alarms that made the method fail."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cabafl.errors import RunStopped, UserError
from cabafl.files import as_json, cannot_record, write_atomic

FILE = "quarantine.json"
WHY_LENGTH = 300  # characters kept of the reason


class AlarmFailed(Exception):
    """The method failed at a timer, at a timeout or at the end of the run. ``alarm`` names which; a replay gives the
    same alarm the same name."""

    def __init__(self, alarm: str, cause: Exception) -> None:
        super().__init__(f"the method fails at {alarm}: {type(cause).__name__}: {cause}")
        self.alarm = alarm


def attempt(alarm: str, call: Callable[[], None]) -> None:
    """Calls the method because of an alarm; raises `AlarmFailed` if the method fails."""
    try:
        call()
    except (RunStopped, MemoryError, OSError):  # not its fault
        raise
    except Exception as error:
        raise AlarmFailed(alarm, error) from error


class Quarantine:
    """A file beside the journal; every change is on disk when its method returns. Raises `UserError` if the file is
    damaged."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.count = 0  # of the whole run
        self.inputs: dict[int, str] = {}  # number in the journal -> reason
        self.alarms: dict[str, str] = {}  # name -> reason
        self.offences: Counter[int] = Counter()  # inputs of each device
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        try:
            table = json.loads(self.path.read_text(encoding="utf-8"))
            self.count = int(table["quarantined"])
            self.inputs = {int(number): str(why) for number, why in table["inputs"].items()}
            self.alarms = {str(name): str(why) for name, why in table.get("alarms", {}).items()}
            self.offences = Counter({int(device): int(n) for device, n in table.get("offences", {}).items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise damaged(self.path, "not a list of inputs") from None

    def add_input(self, number: int, why: str, device: int | None = None) -> None:
        """An input, of a device, must not be handled again."""
        if number not in self.inputs:
            self.inputs[number] = _short(why)
            if device is not None:
                self.offences[device] += 1
            self._write()

    def add_alarm(self, name: str, why: str) -> None:
        """The method must not hear of an alarm again."""
        if name not in self.alarms:
            self.alarms[name] = _short(why)
            self._write()

    def _write(self) -> None:
        self.count += 1
        table = {
            "quarantined": self.count,
            "inputs": {str(number): why for number, why in self.inputs.items()},
            "alarms": self.alarms,
            "offences": {str(device): count for device, count in self.offences.items()},
        }
        try:
            write_atomic(self.path, as_json(table))
        except OSError as error:
            raise cannot_record(error, self.path.parent) from error

    def forget(self, first: int) -> None:
        """The journal no longer has the inputs before number ``first``."""
        self.inputs = {number: why for number, why in self.inputs.items() if number >= first}


def damaged(path: Path, why: str) -> UserError:
    """The error for a journal that cannot be replayed."""
    return UserError(f"{path}: damaged: {why}; accepted: a journal as it was written, or another --out")


def _short(why: str) -> str:
    return " ".join(why.split())[:WHY_LENGTH]
