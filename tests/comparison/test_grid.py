"""The grid of a comparison: finished runs are skipped, interrupted ones continue, failures are reported."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cabafl import simulate
from cabafl.comparison import grid
from cabafl.comparison.grid import GridRun, make_grid
from cabafl.comparison.variants import method_variants
from cabafl.config import load_experiment
from cabafl.errors import UserError
from cabafl.methods import NAMES
from tests.cli.program import cabafl_here
from tests.runs import same_bytes

QUICK = [
    "data.dataset=synthetic",
    "data.devices=10",
    "model.name=mlp",
    "fleet.slots=3",
    "run.virtual_time=60",
    "run.evaluate_every=5",
]
CABAFL = [sys.executable, "-m", "cabafl"]


def compare(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return cabafl_here("compare", *words, "--out", "out", cwd=folder)


def test_finished_runs_are_not_repeated_and_seeds_can_be_added(tmp_path: Path) -> None:
    """Nor do two comparisons share a folder."""
    words = [*QUICK, "fedasync.alpha=0.9", "--methods", "cabafl,fedasync"]
    with grid.locked(tmp_path / "out"):
        refused = compare(tmp_path, *words)
        assert refused.returncode == 2
        assert "--out = out: another comparison is writing here" in refused.stderr
        assert not (tmp_path / "out" / "runs").exists()
    first = compare(tmp_path, *words)
    assert first.returncode == 0, first.stderr
    assert "cabafl" in first.stdout
    assert (tmp_path / "out" / "report.html").exists()
    runs = tmp_path / "out" / "runs"
    assert sorted(path.name for path in runs.iterdir()) == ["cabafl-seed1", "fedasync-seed1"]
    assert "alpha = 0.9" in (runs / "fedasync-seed1" / "experiment.toml").read_text()
    stamps = {path: path.stat().st_mtime_ns for path in runs.glob("*/summary.json")}
    second = compare(tmp_path, *words[:-1], "fedasync", "--seeds", "2", "--jobs", "1")
    assert second.returncode == 0, second.stderr
    assert "1 of 2 runs are already finished" in second.stdout
    assert len(list(runs.glob("*/summary.json"))) == 3
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    third = compare(tmp_path, *QUICK, "fedasync.alpha=0.5", "--methods", "cabafl,fedasync")
    assert third.returncode == 2
    assert "other settings" in third.stderr


def test_a_killed_comparison_continues(tmp_path: Path) -> None:
    settings = [*QUICK, "run.virtual_time=500", "run.checkpoint_every=0.2"]
    words = [*settings, "--methods", "fedavg,fedbuff", "--jobs", "1"]
    process = subprocess.Popen([*CABAFL, "compare", *words, "--out", "out", "--quiet"], cwd=tmp_path)
    record = tmp_path / "out" / "runs" / "fedavg-seed1" / "checkpoint.json"
    deadline = time.monotonic() + 60
    while not record.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None  # else it was over before it was killed
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out" / "report.html").exists()
    again = compare(tmp_path, *words)  # immediately: the orphaned run is still writing its checkpoint
    assert again.returncode == 0, again.stderr
    for name in ("fedavg", "fedbuff"):
        simulate(load_experiment(None, [*settings, "run.workers=0", f"method.name={name}"]), tmp_path / name)
        same_bytes(tmp_path / name, tmp_path / "out" / "runs" / f"{name}-seed1")


def test_an_unwritable_folder_is_reported_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    refused = compare(tmp_path, *QUICK, "--methods", "fedavg")
    assert refused.returncode == 2
    assert refused.stderr.strip().splitlines() == ["error: --out = out: cannot be written: File exists"]


def test_a_failing_run_is_reported_and_the_others_continue(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from cabafl.methods.fedavg import FedAvg\n"
        "class Broken(FedAvg):\n"
        "    def choose(self, server):\n"
        "        raise ValueError('my mistake in [/data/x]')\n"
    )
    done = compare(tmp_path, *QUICK, "--methods", "broken:Broken,fedavg")
    assert done.returncode == 1
    assert "my mistake in [/data/x]" in done.stderr
    assert (tmp_path / "out" / "runs" / "fedavg-seed1" / "summary.json").exists()
    assert "my mistake" in (tmp_path / "out" / "report.html").read_text()


def test_a_run_stopped_by_a_signal_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, stoppers = grid._start, []

    def kill(run: GridRun) -> None:
        metrics = run.folder / "metrics.csv"
        deadline = time.monotonic() + 60
        while not (metrics.exists() and metrics.read_text().count("\n") > 2) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert run.process is not None
        os.kill(run.process.pid, signal.SIGTERM)

    def start_and_kill(run: GridRun) -> None:
        start(run)
        stoppers.append(threading.Thread(target=kill, args=[run]))
        stoppers[-1].start()

    monkeypatch.setattr(grid, "_start", start_and_kill)
    done = compare(tmp_path, *QUICK, "run.virtual_time=1000000", "--methods", "fedavg", "--jobs", "1")
    assert len(stoppers) == 1
    assert done.returncode == 1
    assert "failed: fedavg, seed 1: stopped by a signal; the same command continues it" in done.stderr


@pytest.mark.parametrize(("count", "jobs", "cores"), [(1, 4, [4]), (3, 4, [2, 1, 1]), (2, 5, [3, 2]), (4, 4, [1] * 4)])
def test_cores_are_divided_among_the_last_runs(
    count: int, jobs: int, cores: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def start(run: GridRun) -> None:
        given.append(run.cores)
        run.log = tmp_path / "log"
        run.process = subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr(grid, "_start", start)
    runs = make_grid(load_experiment(None, QUICK), {"fedavg": {"name": "fedavg"}}, range(count), tmp_path)
    grid.run_grid(runs, jobs, lambda _: None)
    assert given == cores


def test_a_run_killed_while_it_created_its_folder_begins_again(tmp_path: Path) -> None:
    [run] = make_grid(load_experiment(None, QUICK), {"fedavg": {"name": "fedavg"}}, [1], tmp_path)
    run.folder.mkdir(parents=True)
    for name in ("environment.json", ".experiment.toml.part"):
        (run.folder / name).write_text("")
    grid.check_folder(run)
    grid.run_grid([run], 1, lambda _: None)
    assert (run.failure, run.done, run.running()) == (None, True, False)
    assert run.processor_seconds > 0
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "runs" / "fedavg-seed2").mkdir()
    (tmp_path / "notes.txt").rename(tmp_path / "runs" / "fedavg-seed2" / "notes.txt")
    with pytest.raises(UserError, match="is not a run folder"):
        make_grid(load_experiment(None, QUICK), {"fedavg": {"name": "fedavg"}}, [2], tmp_path)


def test_the_number_of_ray_actors_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []
    monkeypatch.setattr("cabafl.comparison.grid.subprocess.Popen", lambda command, **_: commands.append(command))
    for words in (["run.executor=ray", "run.workers=2"], []):
        base = load_experiment(None, [*QUICK, *words])
        run = make_grid(base, {"fedavg": {"name": "fedavg"}}, [1], tmp_path)[0]
        grid._start(run)
    assert [any(word.startswith("run.workers=") for word in command) for command in commands] == [False, True]


def test_all_runs_share_everything_but_the_method(tmp_path: Path) -> None:
    base = load_experiment(None, QUICK)
    runs = make_grid(base, method_variants("all", base, []), [1, 2], tmp_path)
    assert len(runs) == 2 * len(NAMES)
    first = runs[0].experiment
    for run in runs[: len(NAMES)]:
        assert run.experiment.model_copy(update={"method": first.method}) == first
