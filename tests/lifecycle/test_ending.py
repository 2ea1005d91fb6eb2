"""Runs that end before their time, and runs that go on after their end."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from cabafl import simulate
from cabafl.cli import main
from cabafl.config import load_experiment
from cabafl.errors import RunStopped, UserError
from cabafl.files import write_atomic
from cabafl.lifecycle.ending import REQUEST, Ending
from cabafl.lifecycle.finishing import finish
from cabafl.lifecycle.simulate import resume
from cabafl.lifecycle.stopping import Paused, Stopped
from cabafl.recording.events import Evaluated
from cabafl.recording.folder import read_metrics
from tests.runs import same_bytes, settings

pytestmark = pytest.mark.usefixtures("no_pixels")


class Killed(BaseException):
    """Stands for the end of the process."""


def kill(*_: object, **__: object) -> None:
    raise Killed


def row(accuracy: float, averaged: float | None = None) -> Evaluated:
    return Evaluated(0.0, 0, accuracy, 1.0, 0, 0, 0, 0, 0, 0.0, averaged)


def ending(*more: str) -> Ending:
    return Ending(load_experiment(None, list(more)).run)


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


def test_a_target_ends_a_run_when_it_is_reached() -> None:
    rule = ending("run.stop_at=0.5")
    rule.see(row(0.49))
    assert rule.reason is None
    rule.see(row(0.5))
    assert rule.reason == "stop_at"


def test_the_averaged_model_counts_if_there_is_one() -> None:
    rule = ending("run.stop_at=0.5")
    rule.see(row(0.9, averaged=0.4))
    assert rule.reason is None
    rule.see(row(0.1, averaged=0.6))
    assert rule.reason == "stop_at"


def test_patience_counts_evaluations_after_the_best() -> None:
    rule = ending("run.patience=2")
    for accuracy in (0.1, 0.3, 0.2, 0.4, 0.4):  # equal is not better
        rule.see(row(accuracy))
        assert rule.reason is None
    rule.see(row(0.39))
    assert rule.reason == "patience"


def test_a_value_that_is_not_a_number_is_never_the_best() -> None:
    rule = ending("run.patience=2")
    for accuracy in (float("nan"), 0.1, 0.2, 0.15):
        rule.see(row(accuracy))
    assert rule.reason is None


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_ends_at_the_evaluation_that_reaches_the_target(workers: int, tmp_path: Path) -> None:
    """With two workers, evaluations are computed beside training: the run must not go further for that."""
    whole = load_experiment(None, settings("fedavg", "run.workers=0"))
    simulate(whole, tmp_path / "whole")
    rows = read_metrics(tmp_path / "whole")
    target = max(r.value for r in rows[: len(rows) // 2])
    first = next(r for r in rows if r.value >= target)
    short = load_experiment(None, settings("fedavg", f"run.workers={workers}", f"run.stop_at={target}"))
    result = simulate(short, tmp_path / "short")
    assert result.summary["ended_by"] == "stop_at"
    assert result.summary["time"] == first.time < 60
    assert read_metrics(tmp_path / "short") == rows[: rows.index(first) + 1]
    events = (tmp_path / "short/events.jsonl").read_text()
    assert (tmp_path / "whole/events.jsonl").read_text().startswith(events)


@pytest.mark.parametrize("method", ["cabafl", "fedavg", "evenkeel", "scaffold", "periodic", "port", "pisces"])
def test_an_extended_run_has_the_bytes_of_a_long_one(method: str, tmp_path: Path) -> None:
    simulate(load_experiment(None, settings(method, "run.workers=0")), tmp_path / "long")
    simulate(load_experiment(None, settings(method, "run.workers=0", "run.virtual_time=23")), tmp_path / "short")
    assert resume(tmp_path / "short") is None
    result = resume(tmp_path / "short", settings=["run.virtual_time=60"])
    assert result is not None
    assert result.summary["time"] == 60
    same_bytes(tmp_path / "long", tmp_path / "short")
    one, other = summary(tmp_path / "long"), summary(tmp_path / "short")
    assert one | {"wall_seconds": 0} == other | {"wall_seconds": 0}
    assert (tmp_path / "long/experiment.toml").read_text() == (tmp_path / "short/experiment.toml").read_text()


def test_an_interrupted_run_can_be_extended_or_cut_short(tmp_path: Path) -> None:
    experiment = load_experiment(None, settings("cabafl", "run.workers=0", "run.virtual_time=45"))
    for name, end in (("longer", 60), ("shorter", 31)):
        folder = tmp_path / name
        with pytest.raises(Paused):
            simulate(experiment, folder, until=30)
        resume(folder, settings=[f"run.virtual_time={end}"])
        whole = load_experiment(None, settings("cabafl", "run.workers=0", f"run.virtual_time={end}"))
        simulate(whole, tmp_path / f"whole-{end}")
        same_bytes(tmp_path / f"whole-{end}", folder)


def test_a_run_that_ended_at_its_target_goes_on_without_it(tmp_path: Path) -> None:
    simulate(load_experiment(None, settings("fedavg", "run.workers=0")), tmp_path / "whole")
    target = read_metrics(tmp_path / "whole")[3].value
    folder = tmp_path / "run"
    simulate(load_experiment(None, settings("fedavg", "run.workers=0", f"run.stop_at={target}")), folder)
    assert summary(folder)["time"] < 60
    with pytest.raises(UserError, match=r"^run.stop_at = .*: the run ended for that; accepted: run.stop_at=none, or"):
        resume(folder, settings=["run.virtual_time=100"])
    assert summary(folder)["ended_by"] == "stop_at"  # still complete
    resume(folder, settings=["run.stop_at=none"])
    same_bytes(tmp_path / "whole", folder)


@pytest.mark.parametrize("at", ["accept", "unfinished", "renamed"])
def test_a_kill_while_a_run_is_being_extended_loses_nothing(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    simulate(load_experiment(None, settings("fedavg", "run.workers=0", "run.virtual_time=20")), folder)
    shutil.copytree(folder, tmp_path / "short")

    place = {"accept": "accept_experiment", "unfinished": "sync_folder", "renamed": "write_atomic"}[at]
    with monkeypatch.context() as patch:
        patch.setattr(f"cabafl.lifecycle.extension.{place}", kill)
        with pytest.raises(Killed):
            resume(folder, settings=["run.virtual_time=60"])
    assert (folder / "summary.json").exists() == (at == "accept")
    resume(folder)
    same_bytes(tmp_path / "short", folder)
    resume(folder, settings=["run.virtual_time=60"])
    simulate(load_experiment(None, settings("fedavg", "run.workers=0")), tmp_path / "whole")
    same_bytes(tmp_path / "whole", folder)


@pytest.mark.parametrize(
    ("begun", "changed", "message"),
    [
        (["run.virtual_time=20"], "run.virtual_time=10", "the run has reached 20 s; accepted: 20 or more"),
        (["run.virtual_time=20", "run.keep_state=false"], "run.virtual_time=60", "its last state was not kept"),
        (["run.virtual_time=20"], "training.epochs=2", "cannot be changed on a run that has begun"),
        (["run.max_dispatches=9"], "run.virtual_time=600", "all these jobs were sent"),
        (["run.virtual_time=20"], "run.virtual_time=-3", "run.virtual_time = -3"),
        (
            ["run.virtual_time=20", "training.schedule=cosine"],
            "run.virtual_time=60",
            "training.schedule_length: not set, so that the learning rate follows the length of the run",
        ),
        (["run.virtual_time=20"], "run.patience=0", "run.patience = 0"),
    ],
)
def test_what_cannot_be_extended_is_refused_and_stays_complete(
    begun: list[str], changed: str, message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    simulate(load_experiment(None, settings("fedavg", "run.workers=0", *begun)), folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match=message):
        resume(folder, settings=[changed])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_target_that_the_run_never_had_is_not_what_ended_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    simulate(load_experiment(None, settings("fedavg", "run.workers=0", "run.virtual_time=20")), folder)
    says = (
        r"run.stop_at = 0.01: the run has reached that before its present end; accepted: run.stop_at=none, or a value"
    )
    with pytest.raises(UserError, match=says):
        resume(folder, settings=["run.stop_at=0.01"])
    assert (folder / "summary.json").exists()


@pytest.mark.parametrize("which", ["checkpoint.json", "experiment.toml"])
def test_a_full_disk_while_a_run_is_being_extended(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long, folder = tmp_path / "long", tmp_path / "run"
    words = settings("fedavg", "run.workers=0")
    simulate(load_experiment(None, words), long)
    simulate(load_experiment(None, [*words, "run.virtual_time=20"]), folder)
    with monkeypatch.context() as full:

        def refuse(path: Path, content: bytes) -> None:
            if path.name == which:
                raise OSError(errno.ENOSPC, "No space left on device")
            write_atomic(path, content)

        full.setattr("cabafl.engine.checkpoint.write_atomic", refuse)
        full.setattr("cabafl.lifecycle.extension.write_atomic", refuse)
        with pytest.raises(RunStopped, match="the run stops because it cannot be recorded: the disk is full"):
            resume(folder, settings=["run.virtual_time=60"])
    assert resume(folder, settings=["run.virtual_time=60"]) is not None
    same_bytes(long, folder)


def test_the_progress_of_an_extension_ends_at_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    simulate(load_experiment(None, settings("fedavg", "run.workers=0", "run.virtual_time=20")), folder)
    monkeypatch.setattr(sys, "argv", ["cabafl", "resume", str(folder), "run.virtual_time=80"])
    with pytest.raises(SystemExit) as ended:
        main()
    shares = [int(line.split("%")[0]) for line in capsys.readouterr().out.splitlines() if "%  t =" in line]
    assert ended.value.code in (0, None)
    assert shares[0] < 100 == max(shares)


def test_an_interrupted_run_is_finished_at_its_checkpoint_and_can_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Paused):
        simulate(load_experiment(None, settings("cabafl", "run.workers=0")), folder, until=30)
    result = finish(folder)
    assert result["ended_by"] == "finish"
    assert 25 < result["time"] <= 30
    assert all((folder / name).exists() for name in ("model.safetensors", "curve.png", "summary.json"))
    assert finish(folder) == result
    assert resume(folder) is None
    resume(folder, settings=["run.virtual_time=60"])  # the length it had: it goes on to there
    simulate(load_experiment(None, settings("cabafl", "run.workers=0")), tmp_path / "whole")
    same_bytes(tmp_path / "whole", folder)


def test_a_damaged_record_is_found_before_a_finished_run_is_changed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    simulate(load_experiment(None, settings("fedavg", "run.workers=0", "run.virtual_time=20")), folder)
    os.truncate(folder / "events.jsonl", 100)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match="shorter than when the checkpoint was taken"):
        resume(folder, settings=["run.virtual_time=60"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (folder / "events.jsonl").unlink()
    with pytest.raises(UserError, match=r"events.jsonl: cannot be written: No such file"):
        resume(folder, settings=["run.virtual_time=60"])
    assert not (folder / "events.jsonl").exists()
    assert (folder / "summary.json").exists()


def test_two_extensions_that_were_killed_leave_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    simulate(load_experiment(None, settings("fedavg", "run.workers=0", "run.virtual_time=20")), folder)

    for place, end in (("cabafl.lifecycle.simulate.carry_out", 40), ("cabafl.lifecycle.extension.write_atomic", 60)):
        with monkeypatch.context() as patch:
            patch.setattr(place, kill)
            with pytest.raises(Killed):
                resume(folder, settings=[f"run.virtual_time={end}"])
    resume(folder)  # to the end that the file still says
    simulate(load_experiment(None, settings("fedavg", "run.workers=0", "run.virtual_time=40")), tmp_path / "whole")
    same_bytes(tmp_path / "whole", folder)


def test_an_end_before_the_end_of_a_finished_run_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    simulate(load_experiment(None, settings("fedavg", "run.workers=0", "run.virtual_time=20")), folder)
    with pytest.raises(UserError, match="until = 10: the run is finished beyond that"):
        resume(folder, settings=["run.virtual_time=60"], until=10)
    assert summary(folder)["time"] == 20


def test_the_command_finishes_a_run_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a process that has not imported the method, whose objects are in the checkpoint."""
    folder = tmp_path / "run"
    with pytest.raises(Paused):
        simulate(load_experiment(None, settings("cabafl", "run.workers=0")), folder, until=30)
    command = [sys.executable, "-m", "cabafl", "finish", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "final accuracy (%)" in done.stdout
    assert f"Learning curve: {folder}/curve.png" in done.stdout.replace("\n", "")
    monkeypatch.setattr(sys, "argv", ["cabafl", "finish", str(folder)])
    with pytest.raises(SystemExit) as again:
        main()
    assert again.value.code in (0, None)
    assert "this run is already complete." in capsys.readouterr().out


def test_a_running_run_is_finished_where_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = settings("fedavg", "run.virtual_time=1e9", "run.workers=0")
    command = [sys.executable, "-m", "cabafl", "run", *words, "--out", str(folder), "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + 60
        while not (folder / "metrics.csv").exists() or len(read_metrics(folder)) < 3:
            assert time.monotonic() < give_up
            assert process.poll() is None
            time.sleep(0.1)
        result = finish(folder)
        assert process.wait(30) == 0
    finally:
        process.kill()
    assert result["ended_by"] == "finish"
    assert result["evaluations"] == len(read_metrics(folder)) >= 3
    assert not (folder / REQUEST).exists()


def test_what_cannot_be_finished_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        finish(tmp_path)
    folder = tmp_path / "run"
    with pytest.raises(Paused):
        simulate(load_experiment(None, settings("fedavg", "run.workers=0")), folder, until=30)
    (folder / "checkpoint.json").unlink()
    with pytest.raises(UserError, match="has no checkpoint yet"):
        finish(folder)
    (folder / "journal").mkdir()
    with pytest.raises(UserError, match=r"a run on real devices; .* end it with `cabafl deploy stop`"):
        finish(folder)


def test_a_budget_of_wall_time_ends_a_simulation_properly(tmp_path: Path) -> None:
    experiment = load_experiment(None, settings("fedavg", "run.workers=0", "run.virtual_time=1e9", "run.wall_time=1"))
    result = simulate(experiment, tmp_path / "run")
    assert result.summary["ended_by"] == "wall_time"
    assert 1 <= result.summary["wall_seconds"] < 30
    assert (tmp_path / "run/model.safetensors").exists()


def test_the_best_model_is_kept(tmp_path: Path) -> None:
    """It has the accuracy of the best evaluation, also if the run was interrupted after that."""
    from safetensors.numpy import load_file

    from cabafl.assembly import assemble

    for name, keep in (("both", "both"), ("best", "best")):
        experiment = load_experiment(None, settings("fedavg", "run.workers=0", f"run.keep={keep}"))
        with pytest.raises(Paused):
            simulate(experiment, tmp_path / name, until=40)
        resume(tmp_path / name)
    rows = read_metrics(tmp_path / "both")
    best = max(rows, key=lambda r: r.value)
    assert summary(tmp_path / "both")["best_version"] == best.version < rows[-1].version
    kept = load_file(tmp_path / "both/model-best.safetensors")
    task = assemble(load_experiment(tmp_path / "both/experiment.toml")).task
    task.model.network.load_state_dict({key: torch.from_numpy(value) for key, value in kept.items()})
    score = task.evaluate(task.model.save(), 0)
    assert score.sums[0][0] / score.samples == best.value
    assert (tmp_path / "best/model.safetensors").read_bytes() == (tmp_path / "both/model-best.safetensors").read_bytes()
    assert not (tmp_path / "best/model-best.safetensors").exists()
    simulate(load_experiment(None, settings("fedavg", "run.workers=0")), tmp_path / "last")
    same_bytes(tmp_path / "last", tmp_path / "both")


def test_a_simulation_leaves_the_threads_of_torch_as_they_were() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        simulate(load_experiment(None, settings("fedavg", "run.workers=0", "run.virtual_time=5")))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_ctrl_c_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    sent: list[object] = []

    def interrupt(event: object) -> None:
        if not sent:
            os.kill(os.getpid(), signal.SIGINT)
        sent.append(event)

    with pytest.raises(KeyboardInterrupt) as stopped:
        simulate(load_experiment(None, settings("fedavg", "run.workers=0")), tmp_path / "run", interrupt)
    assert isinstance(stopped.value, Stopped)
    assert (tmp_path / "run/checkpoint.json").exists()
