"""`cabafl sweep` as a user runs it: whole sweeps, kills, wrong command lines."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from cabafl import load_experiment, simulate
from tests.cli.program import CABAFL, QUICK, cabafl, cabafl_here, refused
from tests.runs import same_bytes


def test_values_can_be_added_and_finished_runs_are_not_repeated(tmp_path: Path) -> None:
    first = cabafl("sweep", *QUICK, "data.beta=0.5,0.1", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    out = tmp_path / "sweep"
    assert "beta = 0.1" in first.stdout
    assert sorted(path.name for path in (out / "runs").iterdir()) == ["cabafl-beta0.1-seed1", "cabafl-beta0.5-seed1"]
    for name in (
        "report.html",
        "sweep.csv",
        "table.tex",
        "figures/accuracy-over-beta.png",
        "figures/accuracy-time.svg",
    ):
        assert (out / name).exists()
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/summary.json")}
    words = ["sweep", *QUICK, "data.beta=10,0.5,0.1", "--methods", "cabafl", "--jobs", "1"]
    second = cabafl_here(*words, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "2 of 3 runs are already finished" in second.stdout
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    rows = (out / "table.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == ["setting", "beta = 0.1", "beta = 0.5", "beta = 10"]
    third = cabafl_here("sweep", *QUICK, "data.beta=0.5,0.1", "fleet.link_seconds=3", cwd=tmp_path)
    assert (third.returncode, third.stderr.count("\n")) == (2, 1)
    assert "other settings" in third.stderr


def test_a_killed_sweep_continues(tmp_path: Path) -> None:
    settings = [*QUICK[:-2], "run.virtual_time=500", "run.evaluate_every=5", "run.checkpoint_every=0.2"]
    settings += ["method.name=fedavg"]
    words = [*settings, "data.beta=0.1,0.5", "--jobs", "1", "--quiet", "--out", "out"]
    runs = tmp_path / "out" / "runs"
    process = subprocess.Popen([*CABAFL, "sweep", *words], cwd=tmp_path)
    record = runs / "fedavg-beta0.1-seed1" / "checkpoint.json"
    deadline = time.monotonic() + 60
    while not record.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None  # else it was over before it was killed
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out" / "report.html").exists()
    again = cabafl_here("sweep", *words, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    names = ["fedavg-beta0.1-seed1", "fedavg-beta0.5-seed1"]
    assert sorted(path.name for path in runs.iterdir()) == names
    for name, beta in zip(names, (0.1, 0.5), strict=True):
        simulate(load_experiment(None, [*settings, "run.workers=0", f"data.beta={beta}"]), tmp_path / name)
        same_bytes(tmp_path / name, runs / name)


@pytest.mark.parametrize(
    "words",
    [
        ["method.kk=5,10"],
        ["data.betta=0.1,0.2"],
        ["method.k="],
        ["method.k=5,,10"],
        ["method.k=5,many"],
        ["method.k=5,5"],
        ["seed=1,2"],
        ["method.k=5"],
        ["method.k=5,10", "--methods", "cabaffl"],
        ["method.k=5,10", "--jobs", "0"],
        ["method.k=5,10", "--targets", "x"],
        ["method.k=5,10", "--targets", "900"],
        ["run.stop_at=0.9,90"],
        ["method.k=1,2", "--seeds", "9999"],
        ["nothing.toml", "method.k=5,10"],
        ["one.toml", "two.toml", "method.k=5,10"],
    ],
    ids=" ".join,
)
def test_a_wrong_sweep_is_one_line_and_leaves_nothing(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(["sweep", *words], monkeypatch, capsys)
    assert list(tmp_path.iterdir()) == []
