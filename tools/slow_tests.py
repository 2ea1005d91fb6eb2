"""Writes ``tests/slow.txt``, the tests that `make test-quick` leaves out, from a measurement of the whole suite.

    python -m pytest -n 2 --junitxml=times.xml
    python tools/slow_tests.py times.xml

A test is slow if one of its cases takes 0.2 s or all of them together take 2 s. Measure on a machine that does nothing
else.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

CASE, ALL_CASES = 0.2, 2.0
LIST = Path(__file__).resolve().parents[1] / "tests" / "slow.txt"


def times(measurement: Path) -> Mapping[str, Sequence[float]]:
    """The seconds of every case of every test, by ``file::test``."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for case in ElementTree.parse(measurement).iter("testcase"):
        file = case.attrib["classname"].replace(".", "/") + ".py"
        found[f"{file}::{case.attrib['name'].split('[')[0]}"].append(float(case.attrib["time"]))
    return found


def slow(found: Mapping[str, Sequence[float]]) -> list[str]:
    """The names of the slow tests, in order."""
    return sorted(name for name, cases in found.items() if max(cases) >= CASE or sum(cases) >= ALL_CASES)


if __name__ == "__main__":
    names = slow(times(Path(sys.argv[1])))
    LIST.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    sys.stdout.write(f"{len(names)} tests in {LIST.name}\n")
