"""`cabafl tune` as a user runs it: whole searches, kills, wrong command lines."""

import csv
import json
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from cabafl import resume, simulate
from cabafl.cli.tune import parse_duration
from cabafl.comparison.grid import GridRun, locked
from cabafl.comparison.tuning.results import summarised, write_results
from cabafl.errors import UserError
from cabafl.lifecycle.stopping import Paused
from tests.cli.program import CABAFL, QUICK, cabafl, cabafl_here, refused
from tests.comparison.tuning.made_up import plan, search
from tests.runs import same_bytes

KEYS = ["training.learning_rate=0.01..0.3:log", "method.k=1,2,3"]
WORDS = [*QUICK, *KEYS, "--rungs", "2", "--jobs", "1"]


def trials(out: Path) -> list[dict[str, str]]:
    with (out / "table.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_search_from_start_to_finish(tmp_path: Path) -> None:
    done = cabafl("tune", *WORDS, "--trials", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "tuning"
    assert "Resuming promoted trials instead of starting them again saved" in done.stdout
    found = trials(out)
    assert sorted(row["trial"] for row in found) == ["0", "1"]
    assert (found[0]["state"], found[0]["rungs"]) == ("finished", "2")
    assert all(float(row["processor_seconds"]) > 0 for row in found)
    folder = out / "runs" / f"trial-{int(found[0]['trial']):04d}-seed1"
    # one that was not promoted keeps its checkpoint, and nothing after its rung
    other = out / "runs" / f"trial-{int(found[-1]['trial']):04d}-seed1"
    assert (other / "checkpoint.json").exists()
    assert json.loads((other / "events.jsonl").read_text().splitlines()[-1])["time"] <= 40 / 3
    # the best settings are a file for `cabafl run`; the promoted trial has the bytes of this run, which never stops
    again = cabafl_here("run", str(out / "best.toml"), "run.workers=0", "--out", "best", "--quiet", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    same_bytes(tmp_path / "best", folder)
    # another search is refused; the same command with more trials adds one and leaves the others alone
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/events.jsonl")}
    other_search = cabafl_here("tune", *WORDS, "data.beta=0.1", "--trials", "3", cwd=tmp_path)
    assert (other_search.returncode, other_search.stderr.count("\n")) == (2, 1)
    assert "error: data.beta = 0.1: the search in tuning has 0.5" in other_search.stderr
    assert cabafl_here("tune", *WORDS, "--trials", "3", "--quiet", cwd=tmp_path).stdout == ""
    assert len(trials(out)) == 3
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())


def carry_out(run: GridRun) -> None:
    """Does what the process of a run does."""
    with suppress(Paused):
        if (run.folder / "experiment.toml").exists():
            resume(run.folder, until=run.until)
        else:
            simulate(run.experiment, run.folder, until=run.until)


def test_a_killed_search_continues(tmp_path: Path) -> None:
    """With one core the search is deterministic: after two kills it ends as one that was not killed."""
    settings = [*QUICK[:-2], "run.virtual_time=300", "run.evaluate_every=5", "run.checkpoint_every=0.2", *KEYS]
    settings += ["run.workers=0"]
    words = [*settings, "--rungs", "2", "--trials", "2", "--jobs", "1", "--quiet"]
    whole = search(plan(*settings, rungs=2, trials=2), tmp_path / "whole", carry_out)
    tuning = summarised(whole.plan, whole.trials, tmp_path / "whole")
    write_results(whole.plan, tuning, whole.trials, tmp_path / "whole")
    folders = [path for path in (tmp_path / "whole" / "runs").iterdir() if path.is_dir()]
    total = sum((folder / "events.jsonl").stat().st_size for folder in folders)
    for share in (0.05, 0.5):
        process = subprocess.Popen([*CABAFL, "tune", *words, "--out", "out"], cwd=tmp_path)
        deadline = time.monotonic() + 90
        while process.poll() is None and time.monotonic() < deadline:
            if sum(path.stat().st_size for path in (tmp_path / "out").glob("runs/*/events.jsonl")) > share * total:
                break
            time.sleep(0.02)
        assert process.poll() is None  # else it was over before it was killed
        process.send_signal(signal.SIGKILL)
        process.wait()
    again = cabafl_here("tune", *words, "--out", "out", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    one, other = (trials(tmp_path / name) for name in ("whole", "out"))
    assert [row | {"processor_seconds": ""} for row in one] == [row | {"processor_seconds": ""} for row in other]
    for folder in folders:
        for name in ("events.jsonl", "metrics.csv"):
            assert (folder / name).read_bytes() == (tmp_path / "out" / "runs" / folder.name / name).read_bytes()
    assert (tmp_path / "whole" / "best.toml").read_bytes() == (tmp_path / "out" / "best.toml").read_bytes()


def test_the_budget_ends_a_search_in_the_middle_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine seconds of a clock that stands still until both runs have evaluated models."""
    runs = tmp_path / "tuning" / "runs"

    def clock() -> float:
        return 9.0 * (sum(path.read_text().count("\n") > 2 for path in runs.glob("*/metrics.csv")) == 2)

    monkeypatch.setattr("cabafl.comparison.tuning.search.time", SimpleNamespace(monotonic=clock))
    words = [*QUICK[:-2], "run.virtual_time=1000000", *KEYS, "--budget", "8s", "--metric", "time_to_99"]
    words += ["--rungs", "1", "--jobs", "2"]
    done = cabafl_here("tune", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list(runs.glob("*/checkpoint.json"))) == 2
    assert "No trial has reached a rung; a longer --budget continues the search." in done.stdout
    assert {row["state"] for row in trials(tmp_path / "tuning")} == {"interrupted"}
    again = cabafl_here("tune", *words, cwd=tmp_path)
    assert "The budget of 8 s is used up by a search of" in again.stdout


def test_ctrl_c_keeps_checkpoints(tmp_path: Path) -> None:
    words = [*QUICK[:-2], "run.virtual_time=1000000", *KEYS, "--trials", "3", "--jobs", "1"]
    process = subprocess.Popen([*CABAFL, "tune", *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    metrics = tmp_path / "tuning" / "runs" / "trial-0000-seed1" / "metrics.csv"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count("\n") > 2) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Run the same command again to continue." in output
    assert (metrics.parent / "checkpoint.json").exists()


def test_a_search_of_which_nothing_can_run_ends_in_one_line(tmp_path: Path) -> None:
    words = ["data.dataset=npz", "data.root=nowhere.npz", *KEYS, "--budget", "1h", "--jobs", "1", "--quiet"]
    done = cabafl_here("tune", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert "error: tune: the first trials have all failed: " in done.stderr
    assert "nowhere.npz" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["method.kk=1..5", "--trials", "3"],
        ["method.k=5..1", "--trials", "3"],
        ["method.k=1..5:up", "--trials", "3"],
        ["method.k=5", "--trials", "3"],
        ["run.workers=1..2", "--trials", "3"],
        ["method.k=1..5"],
        ["method.k=1..5", "--budget", "4"],
        ["method.k=1..5", "--budget", "0s"],
        ["method.k=1..5", "--budget", "h"],
        ["method.k=1..5", "--trials", "3", "--metric", "speed"],
        ["method.k=1..5", "--trials", "3", "--jobs", "none"],
        ["one.toml", "two.toml", "method.k=1..5", "--trials", "3"],
    ],
    ids=" ".join,
)
def test_a_wrong_search_is_one_line_and_leaves_nothing(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(["tune", *words], monkeypatch, capsys)
    assert list(tmp_path.iterdir()) == []


def test_two_searches_do_not_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", *WORDS, "--trials", "1", "--out", str(tmp_path / "out")]
    with locked(tmp_path / "out"):
        assert "is writing here" in refused(words, monkeypatch, capsys)


def test_durations() -> None:
    assert [parse_duration(text) for text in ("90s", "20m", "4h", "1d", "1.5h")] == [90, 1200, 14400, 86400, 5400]
    for text in ("", "4", "-4h", "4 hours", "inf", "0m"):
        with pytest.raises(UserError, match=r"^--budget = "):
            parse_duration(text)
