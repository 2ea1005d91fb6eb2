"""The machine under a device. When it may train and what its process may use is up to its owner (``[when]``: own
function, power supply, temperature, time of day; ``[limits]``: memory and priority); its power sensors tell what a job
costs."""

import logging
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cabafl.deployment.device.terms import Resources, When, hours_of
from cabafl.errors import UserError
from cabafl.own_code import find_own

SYSTEM = Path("/sys")
SAMPLING_INTERVAL = 0.1  # seconds between two readings of a power sensor
COLDEST, HOTTEST = -40.0, 125.0  # degrees Celsius; broken sensors report values outside, or exactly 0
LONGEST_REASON = 200  # characters
MEGABYTE = 1 << 20
_BATTERIES = ("Battery", "UPS")
_OWN = Path("/proc/self")
_OUT_OF_MEMORY = ("allocate memory", "bad_alloc")  # in RuntimeErrors of torch
_log = logging.getLogger(__name__)

Check = Callable[[], str | None]

# When it may train


class Conditions:
    """The checks of a `When`. A source that cannot be read is a `UserError` at the start, and a no later on."""

    def __init__(self, when: When, system: Path = SYSTEM, clock: Callable[[], float] = time.time) -> None:
        self._checks: list[Check] = []
        if when.hours is not None:
            self._checks.append(Hours(when.hours, clock))
        if when.mains_power:
            self._checks.append(MainsPower(system / "class/power_supply"))
        if when.below_celsius is not None:
            self._checks.append(Temperature(when.below_celsius, system))
        if when.function is not None:
            self._checks.append(OwnFunction(when.function))
        for check in self._checks:
            check()

    def unmet(self) -> str | None:
        """Why the device must not train now, without anything private; None: it may."""
        for check in self._checks:
            try:
                reason = check()
            except UserError as error:
                reason = str(error)
            if reason is not None:
                return reason
        return None


class Hours:
    """Local time; the start belongs to the hours, the end does not."""

    def __init__(self, hours: str, clock: Callable[[], float]) -> None:
        self._text, self._clock = hours, clock
        self._start, self._end = hours_of(hours)

    def __call__(self) -> str | None:
        now = time.localtime(self._clock())
        minute = now.tm_hour * 60 + now.tm_min
        if self._start < self._end:
            inside = self._start <= minute < self._end
        else:
            inside = minute >= self._start or minute < self._end
        return None if inside else f"outside its hours {self._text}"


class MainsPower:
    """The power supplies that Linux knows. Batteries of mice and the like (scope Device) do not count.

    A machine without a battery is on mains power. With one, an external supply must be online; if Linux knows none,
    no battery may be discharging.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self) -> str | None:
        try:
            supplies = [path for path in sorted(self._folder.iterdir()) if _word(path / "scope") != "Device"]
            batteries = [path for path in supplies if _word(path / "type", required=True) in _BATTERIES]
            external = [word for path in supplies if path not in batteries and (word := _word(path / "online"))]
            charges = [_word(path / "status", required=True) for path in batteries]
        except OSError as error:
            raise UserError(f"when.mains_power: {self._folder} cannot be read: {error.strerror}") from None
        if not batteries or any(word != "0" for word in external):
            return None
        if not external and all(word in ("Charging", "Full", "Not charging") for word in charges):
            return None
        return "not on mains power"


class Temperature:
    """The hottest of all sensors that report something plausible."""

    def __init__(self, below: float, system: Path) -> None:
        self._below, self._system = below, system

    def __call__(self) -> str | None:
        hottest = max(self._celsius(), default=None)
        if hottest is None:
            raise UserError("when.below_celsius: this machine has no readable temperature sensor")
        return None if hottest < self._below else f"{hottest:.0f} degrees Celsius, not below {self._below:g}"

    def _celsius(self) -> Iterator[float]:
        for pattern in ("thermal/thermal_zone*/temp", "hwmon/hwmon*/temp*_input", "hwmon/hwmon*/device/temp*_input"):
            for path in (self._system / "class").glob(pattern):
                try:
                    value = int(path.read_text(encoding="ascii")) / 1000
                except (OSError, ValueError):
                    continue  # a part that is switched off
                if COLDEST < value < HOTTEST and value != 0:
                    yield value


class OwnFunction:
    """A function of the user that returns True, or False or a reason."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._complaint = ""
        self._function = find_own("when.function", name)

    def __call__(self) -> str | None:
        try:
            answer = self._function()
        except Exception as error:
            self._complain(f"{type(error).__name__}: {error}")
            raise UserError(f"when.function = {self._name!r}: fails: {type(error).__name__}") from error
        if answer is True:
            return None
        if answer is False:
            return f"{self._name} says no"
        if isinstance(answer, str):
            return " ".join(answer.split())[:LONGEST_REASON] or f"{self._name} says no"
        kind = type(answer).__name__
        raise UserError(f"when.function = {self._name!r}: returns {kind}; accepted: True, False or a reason") from None

    def _complain(self, text: str) -> None:
        """Logs what stays on the device, once: the function is asked again and again."""
        if text != self._complaint:
            _log.warning("when.function = %r fails: %s", self._name, text)
            self._complaint = text


def _word(path: Path, required: bool = False) -> str | None:
    """The content of a small file; None if it does not exist and need not."""
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        if required:
            raise
        return None


# What it may use


def apply_limits(limits: Resources) -> None:
    """Limits this process from now on.

    The memory limit is one on private writable memory (RLIMIT_DATA): an allocation beyond it fails and with it the job,
    and the process lives on. RLIMIT_AS would also count what torch maps without using it.
    """
    if limits.nice is not None:
        _renice(limits.nice)
    if limits.memory_mb is not None:
        _limit_memory(limits.memory_mb)


@contextmanager
def memory_failures(limits: Resources) -> Iterator[None]:
    """Turns every way in which torch and NumPy run out of memory into a MemoryError that names the limit."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, RuntimeError) and not any(sign in text for sign in _OUT_OF_MEMORY):
            raise
        limit = "no limit" if limits.memory_mb is None else f"limits.memory_mb = {limits.memory_mb}"
    else:
        return
    raise MemoryError(f"out of memory ({limit})")  # outside of the handler: the old error holds the job's tensors


def _limit_memory(megabytes: int) -> None:
    used = _used_memory()
    if used >= megabytes:
        raise UserError(
            f"limits.memory_mb = {megabytes}: too little, the process uses {used} before it has loaded samples and "
            f"model; accepted: more"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = megabytes * MEGABYTE
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _used_memory() -> int:
    """Megabytes that count against RLIMIT_DATA."""
    try:
        lines = (_OWN / "status").read_text(encoding="ascii").splitlines()
    except OSError:
        raise UserError("limits.memory_mb: works on Linux only") from None
    [kilobytes] = [line.split()[1] for line in lines if line.startswith("VmData:")]
    return int(kilobytes) // 1024


def _renice(nice: int) -> None:
    """On Linux each thread has its own priority. One that is nicer already stays so."""
    threads = [int(path.name) for path in (_OWN / "task").iterdir()] if (_OWN / "task").is_dir() else [0]
    for thread in threads:
        if os.getpriority(os.PRIO_PROCESS, thread) < nice:
            os.setpriority(os.PRIO_PROCESS, thread, nice)


# What a job costs: energy from power sensors if there are any, otherwise from a configured power


@dataclass
class Reading:
    """Energy measured so far."""

    joules: float = 0.0


class Meter(Protocol):
    """Measures the energy of some work."""

    source: str  # of the figures, for the log

    def joules(self, work: Callable[[], None]) -> float:
        """Runs ``work``; returns its energy in joules."""


class ConfiguredPower:
    """Elapsed time times a given power."""

    def __init__(self, watts: float) -> None:
        self.source = f"{watts:g} W as configured"
        self._watts = watts

    def joules(self, work: Callable[[], None]) -> float:
        began = time.perf_counter()
        work()
        return (time.perf_counter() - began) * self._watts


class EnergyCounters:
    """Intel RAPL: one counter of microjoules per processor package; counters wrap around to 0."""

    source = "Intel RAPL"

    def __init__(self, folders: Sequence[Path]) -> None:
        self._counters = [folder / "energy_uj" for folder in folders]
        self._ranges = [_number(folder / "max_energy_range_uj") for folder in folders]

    def joules(self, work: Callable[[], None]) -> float:
        before = [_number(counter) for counter in self._counters]
        work()
        after = [_number(counter) for counter in self._counters]
        spent = zip(before, after, self._ranges, strict=True)
        return sum(new - old if new >= old else new - old + full for old, new, full in spent) / 1e6


class PowerSensors:
    """Sensors of the momentary power, as on Jetson boards, sampled during the work and integrated over time."""

    def __init__(self, source: str, watts: Callable[[], float]) -> None:
        self.source = source
        self._watts = watts

    def joules(self, work: Callable[[], None]) -> float:
        with self._sampled() as reading:
            work()
        return reading.joules

    @contextmanager
    def _sampled(self) -> Iterator[Reading]:
        reading, stop = Reading(), threading.Event()
        last, power = time.perf_counter(), self._watts()

        def take() -> None:
            nonlocal last, power
            now, watts = time.perf_counter(), self._watts()
            reading.joules += (now - last) * (power + watts) / 2
            last, power = now, watts

        def sample() -> None:
            while not stop.wait(SAMPLING_INTERVAL):
                take()

        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        try:
            yield reading
        finally:
            stop.set()
            sampler.join()
            take()


def find_meter(watts: float, system: Path = SYSTEM, sensor: bool = True) -> Meter:
    """The best meter of this machine; without a readable sensor, or if ``sensor`` is False, one that assumes
    ``watts``."""
    if not sensor:
        return ConfiguredPower(watts)
    packages = [p for p in sorted((system / "class/powercap").glob("intel-rapl:*")) if p.name.count(":") == 1]
    if packages and all(_readable(p / "energy_uj") and _readable(p / "max_energy_range_uj") for p in packages):
        return EnergyCounters(packages)
    board = sorted((system / "bus/i2c/drivers/ina3221x").glob("*/iio*/in_power0_input"))  # milliwatts
    if board and _readable(board[0]):
        return PowerSensors("Jetson power sensor", lambda: _number(board[0]) / 1e3)
    supply = sorted((system / "bus/i2c/drivers/ina3221").glob("*/hwmon/hwmon*/in1_input"))  # millivolts
    if supply and _readable(supply[0]) and _readable(supply[0].with_name("curr1_input")):  # milliamperes
        volts, amperes = supply[0], supply[0].with_name("curr1_input")
        return PowerSensors("Jetson power sensor", lambda: _number(volts) * _number(amperes) / 1e6)
    return ConfiguredPower(watts)


def _number(path: Path) -> float:
    return float(path.read_text(encoding="ascii"))


def _readable(path: Path) -> bool:
    try:
        _number(path)
    except (OSError, ValueError):
        return False
    return True
