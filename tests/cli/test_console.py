"""Tables on narrow terminals, and output that nobody reads."""

import io
import json
import subprocess
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cabafl.cli.console import print_table
from tests.cli.program import CABAFL, QUICK


def printed(table: Table, width: int, narrow: int = 80) -> list[str]:
    screen = io.StringIO()
    print_table(table, narrow, Console(file=screen, width=width, markup=False, highlight=False))
    return screen.getvalue().splitlines()


def two_methods() -> Table:
    table = Table(title="methods")
    for heading in ("method", "kind", Text("transfers\nto 40 %")):
        table.add_column(heading)
    table.add_row("cabafl", "asynchronous and [more] of it", Text("12 *"))
    table.add_row("fedavg", "synchronous", "13")
    return table


def test_a_table_that_does_not_fit_is_stacked() -> None:
    assert printed(two_methods(), 40) == [
        "methods",
        "cabafl",
        "  kind: asynchronous and [more] of it",
        "  transfers to 40 %: 12 *",
        "fedavg",
        "  kind: synchronous",
        "  transfers to 40 %: 13",
    ]


def test_a_table_that_fits_or_a_wide_terminal_shows_it_as_it_is() -> None:
    assert "│" in printed(two_methods(), 70)[-2]
    assert "│" in printed(two_methods(), 45, narrow=40)[-2]


def test_a_closed_pipe_does_not_end_a_run(tmp_path: Path) -> None:
    command = [*CABAFL, "run", *QUICK, "run.virtual_time=100", "run.workers=1", "--out", "here"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    first = process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), errors) == (0, "")
    assert first.startswith("  0 %  t = 0 s")
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["time"] == 100


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_on_a_full_disk_does_not_end_a_run(tmp_path: Path) -> None:
    command = [*CABAFL, "run", *QUICK, "run.workers=0", "--out", "here"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    reason = "standard output cannot be written: No space left on device; no more follows there"
    assert (done.returncode, done.stderr) == (0, f"warning: {reason}\n")
    assert (tmp_path / "here" / "summary.json").exists()
