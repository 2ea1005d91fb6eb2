"""Every slow test listed in conftest.py exists: a renamed one would silently join the quick tier."""

import re
from pathlib import Path

from tests.conftest import SLOW_CASES, SLOW_FILES, SLOW_TESTS

ROOT = Path(__file__).parent.parent


def text_of(pattern: str) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob(pattern))


def test_slow_files_exist() -> None:
    assert [file for file in sorted(SLOW_FILES) if not (ROOT / file).is_file()] == []


def test_slow_tests_exist() -> None:
    tests = {case.split("[")[0] for case in SLOW_CASES} | SLOW_TESTS
    assert tests - set(re.findall(r"def (test_\w+)\(", text_of("test_*.py"))) == set()


def test_slow_cases_exist() -> None:
    cases = {re.sub(r".*\[(.*)\]", r'"\1":', case) for case in SLOW_CASES}
    assert [case for case in sorted(cases) if case not in text_of("*.py")] == []
