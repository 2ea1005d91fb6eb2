"""When a device trains, with files like those of real boards and a clock that can be set."""

import logging
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.deployment.device.machine import Conditions
from cabafl.deployment.device.terms import When
from cabafl.errors import UserError

MIDNIGHT = time.mktime((2026, 1, 5, 0, 0, 0, 0, 0, -1))


def put(folder: Path, **files: str | int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def test_nothing_is_asked_by_default(tmp_path: Path) -> None:
    assert Conditions(When(), tmp_path / "nowhere").unmet() is None


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [
        ("22-6", ["22:00", "23:59", "00:00", "05:59"], ["06:00", "12:00", "21:59"]),
        ("9-17", ["09:00", "16:59"], ["08:59", "17:00", "00:00"]),
        ("22:30-6:15", ["22:30", "06:14"], ["22:29", "06:15"]),
        ("20-24", ["20:00", "23:59"], ["00:00", "19:59"]),
        ("20-0", ["20:00", "23:59"], ["00:00", "19:59"]),
    ],
)
def test_hours_of_the_day(hours: str, inside: list[str], outside: list[str]) -> None:
    for moment in inside + outside:
        hour, minute = map(int, moment.split(":"))
        now = MIDNIGHT + hour * 3600 + minute * 60
        found = Conditions(When(hours=hours), clock=lambda now=now: now).unmet()  # type: ignore[misc]
        assert found == (None if moment in inside else f"outside its hours {hours}"), moment


@given(st.integers(0, 23), st.integers(0, 23), st.integers(0, 24 * 60 - 1))
def test_hours_count_round_the_clock(start: int, end: int, minute: int) -> None:
    """Against a walk from the start, hour by hour, until the end."""
    if start == end:
        return
    walked, hour = set(), start
    while hour != end:
        walked.add(hour)
        hour = (hour + 1) % 24
    met = Conditions(When(hours=f"{start}-{end}"), clock=lambda: MIDNIGHT + minute * 60).unmet() is None
    assert met == (minute // 60 in walked)


Supply = dict[str, str | int]
BATTERY: Supply = {"type": "Battery", "status": "Discharging"}
FULL: Supply = {"type": "Battery", "status": "Full"}
MOUSE: Supply = {"type": "Battery", "status": "Discharging", "scope": "Device"}
PLUGGED: Supply = {"type": "Mains", "online": 1}
UNPLUGGED: Supply = {"type": "Mains", "online": 0}
USB_OFF: Supply = {"type": "USB", "online": 0}
NO_ONLINE: Supply = {"type": "USB"}


@pytest.mark.parametrize(
    ("supplies", "mains"),
    [
        ([], True),
        ([UNPLUGGED], True),  # no battery: the machine runs, so it has power
        ([MOUSE], True),
        ([PLUGGED, BATTERY], True),  # a heavy load may discharge it nevertheless
        ([UNPLUGGED, BATTERY], False),
        ([UNPLUGGED, FULL], False),
        ([UNPLUGGED, PLUGGED, FULL], True),
        ([USB_OFF, UNPLUGGED, BATTERY], False),
        ([FULL], True),
        ([BATTERY], False),
        ([FULL, BATTERY], False),
        ([NO_ONLINE, BATTERY], False),
        ([{"type": "UPS", "status": "Discharging"}], False),
    ],
)
def test_mains_power(tmp_path: Path, supplies: list[Supply], mains: bool) -> None:
    (tmp_path / "class/power_supply").mkdir(parents=True)
    for number, files in enumerate(supplies):
        put(tmp_path / f"class/power_supply/{number}", **files)
    assert Conditions(When(mains_power=True), tmp_path).unmet() == (None if mains else "not on mains power")


def test_mains_power_needs_a_readable_source(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"when.mains_power: .*power_supply cannot be read: No such file"):
        Conditions(When(mains_power=True), tmp_path)
    put(tmp_path / "class/power_supply/BAT0", type="Battery")  # without a status
    with pytest.raises(UserError, match=r"when.mains_power: .* cannot be read"):
        Conditions(When(mains_power=True), tmp_path)


def test_the_hottest_plausible_sensor_counts(tmp_path: Path) -> None:
    put(tmp_path / "class/thermal/thermal_zone0", temp=41_000)
    put(tmp_path / "class/hwmon/hwmon0", temp1_input=65_500, temp2_input=127_900)  # the second is not connected
    put(tmp_path / "class/hwmon/hwmon1", temp1_input=-273_150)
    (tmp_path / "class/hwmon/hwmon1/temp2_input").mkdir()  # a part that is switched off
    assert Conditions(When(below_celsius=66), tmp_path).unmet() is None
    warm = Conditions(When(below_celsius=65.5), tmp_path)
    assert warm.unmet() == "66 degrees Celsius, not below 65.5"
    put(tmp_path / "class/hwmon/hwmon0", temp1_input=65_499)
    assert warm.unmet() is None


@pytest.mark.parametrize("value", ["0", "-128000", "255000", "hot"])
def test_a_machine_without_a_plausible_sensor_is_refused_at_the_start(tmp_path: Path, value: str) -> None:
    put(tmp_path / "class/thermal/thermal_zone0", temp=value)
    with pytest.raises(UserError, match=r"when.below_celsius: this machine has no readable temperature sensor"):
        Conditions(When(below_celsius=66), tmp_path)


def test_a_source_that_breaks_later_is_a_no(tmp_path: Path) -> None:
    put(tmp_path / "class/thermal/thermal_zone0", temp=41_000)
    conditions = Conditions(When(below_celsius=66), tmp_path)
    assert conditions.unmet() is None
    (tmp_path / "class/thermal/thermal_zone0/temp").unlink()
    assert conditions.unmet() == "when.below_celsius: this machine has no readable temperature sensor"


def test_all_conditions_must_hold(tmp_path: Path) -> None:
    put(tmp_path / "class/power_supply/AC", **UNPLUGGED)
    put(tmp_path / "class/power_supply/BAT", **BATTERY)
    put(tmp_path / "class/thermal/thermal_zone0", temp=41_000)
    when = When(mains_power=True, below_celsius=50, hours="0-12")
    conditions = Conditions(when, tmp_path, lambda: MIDNIGHT)
    assert conditions.unmet() == "not on mains power"
    put(tmp_path / "class/power_supply/AC", **PLUGGED)
    assert conditions.unmet() is None
    put(tmp_path / "class/thermal/thermal_zone0", temp=51_000)
    assert conditions.unmet() == "51 degrees Celsius, not below 50"


answer: Any = True


def own() -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.mark.parametrize(
    ("given_answer", "reason"),
    [
        (True, None),
        (False, f"{__name__}:own says no"),
        ("", f"{__name__}:own says no"),
        ("somebody\n uses it", "somebody uses it"),
    ],
)
def test_a_function_of_the_user(monkeypatch: pytest.MonkeyPatch, given_answer: Any, reason: str | None) -> None:
    monkeypatch.setattr(f"{__name__}.answer", given_answer)
    assert Conditions(When(function=f"{__name__}:own")).unmet() == reason


@pytest.mark.parametrize(
    ("name", "given_answer", "complaint"),
    [
        ("nowhere:own", True, "when.function = 'nowhere:own': cannot be imported: No module named 'nowhere'"),
        (f"{__name__}:other", True, "cannot be imported: module .* has no attribute 'other'"),
        (f"{__name__}:own", 1, "returns int; accepted: True, False or a reason"),
        (f"{__name__}:own", None, "returns NoneType; accepted: True, False or a reason"),
        (f"{__name__}:own", OSError("private"), "fails: OSError$"),
    ],
)
def test_a_function_that_does_not_answer_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, given_answer: Any, complaint: str
) -> None:
    monkeypatch.setattr(f"{__name__}.answer", given_answer)
    with pytest.raises(UserError, match=complaint):
        Conditions(When(function=name))


def test_a_function_that_fails_later_is_a_no_and_its_words_stay_here(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    conditions = Conditions(When(function=f"{__name__}:own"))
    monkeypatch.setattr(f"{__name__}.answer", OSError("private"))
    for _ in range(3):
        assert conditions.unmet() == f"when.function = '{__name__}:own': fails: OSError"
    assert [record.levelno for record in caplog.records if "private" in record.getMessage()] == [logging.WARNING]
