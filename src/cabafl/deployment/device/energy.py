"""Energy of a job in joules: from power sensors if there are any, otherwise from a configured power."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

SYSTEM = Path("/sys")
SAMPLING_INTERVAL = 0.1  # seconds between two readings of a power sensor


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
