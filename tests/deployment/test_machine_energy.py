"""Energy of a job, measured from files like those of real boards."""

import time
from pathlib import Path

import pytest

from cabafl.deployment.device.machine import find_meter


def put(path: Path, value: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")
    return path


def test_configured_power_without_sensors(tmp_path: Path) -> None:
    meter = find_meter(20.0, tmp_path)
    assert meter.source == "20 W as configured"
    assert 20.0 * 0.05 <= meter.joules(lambda: time.sleep(0.05)) < 20.0 * 5


def test_rapl_counters_are_added_and_may_wrap(tmp_path: Path) -> None:
    folder = tmp_path / "class/powercap"
    first = put(folder / "intel-rapl:0/energy_uj", 1_000_000)
    second = put(folder / "intel-rapl:1/energy_uj", 9_000_000)
    put(folder / "intel-rapl:0:0/energy_uj", 5)  # part of package 0: not counted twice
    for package in (0, 1):
        put(folder / f"intel-rapl:{package}/max_energy_range_uj", 10_000_000)
    meter = find_meter(20.0, tmp_path)
    assert meter.source == "Intel RAPL"

    def work() -> None:
        put(first, 3_500_000)
        put(second, 500_000)

    assert meter.joules(work) == pytest.approx(2.5 + 1.5)
    assert find_meter(20.0, tmp_path, sensor=False).source == "20 W as configured"


def test_unreadable_counters_are_not_used(tmp_path: Path) -> None:
    put(tmp_path / "class/powercap/intel-rapl:0/max_energy_range_uj", 10)
    (tmp_path / "class/powercap/intel-rapl:0/energy_uj").mkdir()
    assert "configured" in find_meter(5.0, tmp_path).source


@pytest.mark.parametrize("kind", ["one sensor", "volts and amperes"])
def test_jetson_power_is_integrated_over_time(kind: str, tmp_path: Path) -> None:
    drivers = tmp_path / "bus/i2c/drivers"
    if kind == "one sensor":
        put(drivers / "ina3221x/6-0040/iio:device0/in_power0_input", 4_000)
    else:
        put(drivers / "ina3221/1-0040/hwmon/hwmon3/in1_input", 5_000)
        put(drivers / "ina3221/1-0040/hwmon/hwmon3/curr1_input", 800)
    meter = find_meter(20.0, tmp_path)
    assert meter.source == "Jetson power sensor"
    began = time.perf_counter()
    joules = meter.joules(lambda: time.sleep(0.35))
    assert 4.0 * 0.35 <= joules <= 4.0 * (time.perf_counter() - began)


def test_sampling_ends_when_the_work_fails(tmp_path: Path) -> None:
    put(tmp_path / "bus/i2c/drivers/ina3221x/6-0040/iio:device0/in_power0_input", 4_000)

    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        find_meter(20.0, tmp_path).joules(fail)
