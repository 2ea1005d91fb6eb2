"""Every slow test listed in conftest.py exists: a renamed one would silently join the quick tier."""

import re
from pathlib import Path

from tests.conftest import SLOW_FILES, SLOW_TESTS

ROOT = Path(__file__).parent.parent


def test_slow_files_exist() -> None:
    assert [file for file in sorted(SLOW_FILES) if not (ROOT / file).is_file()] == []


def test_slow_tests_exist() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert SLOW_TESTS - set(re.findall(r"def (test_\w+)\(", text)) == set()
