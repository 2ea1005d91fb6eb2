"""`cabafl observe`, and the check of figure paths that it shares with `cabafl data show`."""

from pathlib import Path

import pytest

from tests.cli.program import cabafl_here


def test_observations_on_synthetic_data(tmp_path: Path) -> None:
    words = ["observe", "data.dataset=synthetic", "model.name=mlp", "--draws", "3", "--epochs", "1"]
    done = cabafl_here(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "beta = 0.1" in done.stdout
    assert (tmp_path / "observations.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", [["observe", "data.dataset=missing"], ["data", "show", "missing"]])
@pytest.mark.parametrize(("out", "accepted"), [("none/x.png", "an existing"), ("x.txt", "ends in .png, .svg")])
def test_an_invalid_figure_path_is_reported_before_the_work(
    command: list[str], out: str, accepted: str, tmp_path: Path
) -> None:
    done = cabafl_here(*command, "--out", out, cwd=tmp_path)
    assert done.returncode == 2
    assert f"--out = {out}" in done.stderr
    assert accepted in done.stderr
