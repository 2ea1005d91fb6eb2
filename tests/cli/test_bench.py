"""`cabafl bench`."""

from pathlib import Path

from tests.cli.program import cabafl_here


def test_bench_selection_prints_a_row_per_number_of_devices(tmp_path: Path) -> None:
    done = cabafl_here("bench", "selection", "--devices", "50", "--devices", "200", "--repetitions", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "200" in done.stdout
