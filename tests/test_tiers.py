"""The list of slow tests: how it is made, and that each of them exists; a renamed one would join the quick tier."""

from pathlib import Path

from tests.conftest import SLOW
from tools.slow_tests import slow, times

ROOT = Path(__file__).parent.parent


def test_slow_tests_exist() -> None:
    missing = []
    for entry in sorted(SLOW):
        file, name = entry.split("::")
        path = ROOT / file
        if not path.is_file() or f"def {name}(" not in path.read_text(encoding="utf-8"):
            missing.append(entry)
    assert missing == []


def test_one_slow_case_or_many_quick_ones_make_a_test_slow(tmp_path: Path) -> None:
    cases = [("one", "test_quick[a]", 0.1), ("one", "test_quick[b]", 0.1), ("two", "test_slow[a]", 0.3)]
    cases += [("two", "test_slow[b]", 0.0)] + [("three", f"test_many[{number}]", 0.1) for number in range(20)]
    rows = [f'<testcase classname="tests.room.test_{file}" name="{name}" time="{t}"/>' for file, name, t in cases]
    measurement = tmp_path / "times.xml"
    measurement.write_text(f"<testsuites><testsuite>{''.join(rows)}</testsuite></testsuites>", encoding="utf-8")
    assert slow(times(measurement)) == ["tests/room/test_three.py::test_many", "tests/room/test_two.py::test_slow"]
