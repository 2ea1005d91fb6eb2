"""`cabafl data show`."""

from pathlib import Path

from tests.cli.program import cabafl


def test_data_show_draws_the_partition(tmp_path: Path) -> None:
    done = cabafl("data", "show", "mnist5k", "data.beta=0.3", "data.devices=20", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4,000 of 4,000 training samples" in done.stdout
    assert (tmp_path / "partition-mnist5k.png").read_bytes().startswith(b"\x89PNG")
