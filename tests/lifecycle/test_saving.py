"""Checkpoints are written while the run goes on."""

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cabafl.config import load_experiment
from cabafl.engine.checkpoint import Snapshot, load_checkpoint, write_snapshot
from cabafl.errors import RunStopped
from cabafl.lifecycle.run import Lifecycle, experiment_text
from cabafl.lifecycle.stopping import Stopped
from tests.lifecycle.test_run import Counting, interrupt, lifecycle

Write = Callable[..., None]


class SlowWriter:
    """Stands in for `write_snapshot`: holds each checkpoint back until it is let go."""

    def __init__(self) -> None:
        self.begun: list[Snapshot] = []
        self.go = threading.Event()
        self.writing = 0
        self.most = 0

    def __call__(self, folder: Path, snapshot: Snapshot, experiment: str, abandoned: Callable[[], bool]) -> None:
        self.begun.append(snapshot)
        self.writing += 1
        self.most = max(self.most, self.writing)
        while not self.go.wait(0.005):
            if abandoned():
                return
        write_snapshot(folder, snapshot, experiment, abandoned)
        self.writing -= 1


def frequent(folder: Path, monkeypatch: pytest.MonkeyPatch, write: Write) -> Lifecycle:
    """A run that saves as often as it can, with a writer of the test's own."""
    monkeypatch.setattr("cabafl.lifecycle.run.write_snapshot", write)
    monkeypatch.setattr("cabafl.lifecycle.run.CHECKPOINT_SHARE", 1e9)
    run = lifecycle(folder)
    run.experiment = load_experiment(None, ["run.checkpoint_every=1e-9", "run.keep_state=false"])
    return run


def writer_is_idle() -> bool:
    return not any(thread.name == "checkpoint" for thread in threading.enumerate())


def until(condition: Callable[[], Any]) -> None:
    """Waits for another thread; fails after a while."""
    give_up = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)


def test_the_run_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 steps happen during one checkpoint. What it stores is the state when it was begun, with the record's length
    at that moment."""
    writer = SlowWriter()
    run = frequent(tmp_path / "run", monkeypatch, writer)
    lengths: dict[int, dict[str, int]] = {}
    driver = Counting(run, 400)
    array = np.zeros(3, dtype=np.int64)

    def changing_step() -> bool:
        lengths[driver.count] = run.folder.positions() if run.folder else {}
        array[:] = driver.count + 1
        if driver.count == 302:
            assert driver.saves == []
            writer.go.set()
            until(writer_is_idle)
        return Counting.step(driver)

    driver.step = changing_step  # type: ignore[method-assign]
    driver.state = lambda: {"now": 0.0, "count": driver.count, "array": array}  # type: ignore[method-assign]
    stored = []

    def saved(state: dict[str, Any]) -> None:
        driver.saves.append(state["count"])
        checkpoint = load_checkpoint(tmp_path / "run", experiment_text(tmp_path / "run"))
        assert checkpoint is not None
        stored.append((checkpoint.engine["count"], checkpoint.engine["array"].tolist(), checkpoint.positions))

    driver.saved = saved  # type: ignore[method-assign]
    run.carry_out(driver, None)
    assert driver.saves[0] == 1
    assert driver.saves[1] > 302
    assert stored[0] == (1, [1, 1, 1], lengths[1])
    assert all(array == [count] * 3 and positions == lengths[count] for count, array, positions in stored[:-1])
    assert writer.most == 1


def test_a_checkpoint_that_cannot_be_written_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = frequent(tmp_path / "run", monkeypatch, full)
    driver = Counting(run, 100, dict.fromkeys(range(100), lambda: until(writer_is_idle)))
    with pytest.raises(RunStopped, match="run: the run stops because it cannot be recorded: the disk is full"):
        run.carry_out(driver, None)
    assert (driver.count, driver.saves) == (2, [])


def test_a_checkpoint_waits_for_evaluations_instead_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = frequent(tmp_path / "run", monkeypatch, write_snapshot)
    monkeypatch.setattr("cabafl.lifecycle.run.MOST_POSTPONED", 1e12)
    driver = Counting(run, 60)
    driver.at = {1: lambda: driver.pending.append("an evaluation"), 50: driver.pending.clear}
    run.carry_out(driver, None)
    assert driver.saves[0] == 50


def test_it_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = frequent(tmp_path / "run", monkeypatch, write_snapshot)
    driver = Counting(run, 60)
    driver.pending.append("an evaluation")
    run.carry_out(driver, None)
    assert driver.saves[0] == 1


def test_a_stop_waits_for_the_writer_and_then_saves_what_came_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SlowWriter()
    run = frequent(tmp_path / "run", monkeypatch, writer)
    driver = Counting(run, 9, {4: interrupt})
    driver.wake = writer.go.set  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        run.carry_out(driver, None)
    assert (driver.saves, [snapshot.number for snapshot in writer.begun]) == ([1, 4], [1, 2])
    checkpoint = load_checkpoint(tmp_path / "run", experiment_text(tmp_path / "run"))
    assert checkpoint is not None
    assert (checkpoint.engine["count"], checkpoint.number) == (4, 2)


def test_the_end_of_a_run_waits_for_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SlowWriter()
    run = frequent(tmp_path / "run", monkeypatch, writer)
    driver = Counting(run, 9)
    driver.engine.conclude = writer.go.set  # type: ignore[method-assign]
    run.carry_out(driver, None)
    assert driver.saves == [1]
    assert not list((tmp_path / "run").glob("checkpoint*"))


def test_an_error_in_the_run_leaves_no_thread_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SlowWriter()
    run = frequent(tmp_path / "run", monkeypatch, writer)

    def fail() -> None:
        raise ZeroDivisionError

    driver = Counting(run, 9, {4: fail})
    with pytest.raises(ZeroDivisionError):
        run.carry_out(driver, None)
    assert writer_is_idle()
    assert len(writer.begun) == 1
    assert not (tmp_path / "run" / "checkpoint.json").exists()
