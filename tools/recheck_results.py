"""Whether the program still makes the kept results: `python tools/recheck_results.py results/methods --seconds 300`.

Makes the start of every kept run again, and compares its evaluations with the kept ones, number by number. Use a
processor of the kind that made them (`environment.json`): on others, the last digits may differ.
"""

import argparse
import csv
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cabafl import load_experiment, simulate
from cabafl.lifecycle.stopping import Paused
from cabafl.recording.folder import EXPERIMENT, METRICS, SUMMARY

Row = dict[str, str]


def rows(folder: Path, seconds: float) -> list[Row]:
    """The evaluations of a run up to a moment."""
    with (folder / METRICS).open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if float(row["time"]) <= seconds]


def difference(kept: list[Row], made: list[Row]) -> str | None:
    """The first difference, in words; None if all evaluations are equal. Columns the kept run lacks do not count."""
    for old, new in zip(kept, made, strict=False):
        for column, value in old.items():
            if new.get(column) != value:
                return f"{column} at {old['time']} s: kept {value}, now {new.get(column)}"
    return None if len(kept) == len(made) else f"{len(kept)} evaluations kept, now {len(made)}"


def recheck(folder: Path, seconds: float, settings: Sequence[str] = ()) -> str | None:
    """Makes the start of a kept run again; returns the first difference."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "run"
        with suppress(Paused):
            simulate(load_experiment(folder / EXPERIMENT, settings), out=made, until=seconds)
        return difference(rows(folder, seconds), rows(made, seconds))


def main() -> int:
    """Prints a line per run; exit code 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0, help="virtual time up to which runs are made again")
    parser.add_argument("--only", default="", help="only runs whose name contains this text")
    parser.add_argument("settings", nargs="*", help="section.key=value, such as data.root=FILE or run.workers=1")
    given = parser.parse_intermixed_args()  # settings may follow options
    differ = 0
    for summary in sorted(given.folder.rglob(SUMMARY)):
        folder = summary.parent
        if given.only in folder.name:
            found = recheck(folder, given.seconds, given.settings)
            differ += found is not None
            count = len(rows(folder, given.seconds))
            sys.stdout.write(f"{folder.name}: {found or f'equal ({count} evaluations)'}\n")
            sys.stdout.flush()
    return min(differ, 1)


if __name__ == "__main__":
    sys.exit(main())
