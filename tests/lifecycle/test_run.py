"""The lifecycle of a run, with a fake driver instead of an engine."""

import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from cabafl.config import load_experiment
from cabafl.engine.checkpoint import load_checkpoint
from cabafl.engine.core import Engine
from cabafl.engine.ledger import Ledger
from cabafl.learning.task import Layout
from cabafl.lifecycle.run import Lifecycle, experiment_text
from cabafl.lifecycle.stopping import Stopped
from cabafl.recording.events import Evaluated
from cabafl.recording.folder import RunFolder

LAYOUT = Layout(("w",), ((2,),), (0, 2), 2, 2)
EXPERIMENT = load_experiment(None, ["run.keep_state=false", "run.checkpoint_every=1000"])


class Counting:
    """Counts to a number; every step is an evaluation."""

    def __init__(self, run: Lifecycle, until: int, at: dict[int, Any] | None = None) -> None:
        self.run, self.until, self.at = run, until, at or {}
        self.count = 0
        self.saves: list[int] = []
        self.woken = False
        ledger, model = Ledger(), np.array([1.5, 2.5], dtype=np.float32)
        self.pending: list[Any] = []  # evaluations that a checkpoint would have to wait for
        outbox = SimpleNamespace(flush=lambda: None, waiting=self.pending, best=None)
        fields = {
            "clock": "virtual",
            "now": 0.0,
            "ledger": ledger,
            "model": model,
            "average": None,
            "result": model,
            "conclude": self.evaluate,
        }
        selections = np.ones(3, dtype=np.int64)
        nothing = {"defence": SimpleNamespace(totals=dict), "changes": {}, "stopping": "no", "panel": None}
        self.engine = cast(Engine, SimpleNamespace(selections=selections, outbox=outbox, **fields, **nothing))

    def evaluate(self) -> None:
        self.run.emit(Evaluated(float(self.count), self.count, 0.5, 1.0, 0, 0, 0, 0, 0, 0.0))

    def begin(self, state: dict[str, Any] | None) -> None:
        self.count = 0 if state is None else state["count"]

    def step(self) -> bool:
        self.run.check_stop()
        self.count += 1
        self.evaluate()
        if self.count in self.at:
            self.at[self.count]()
        return self.count < self.until

    def state(self) -> dict[str, Any] | None:
        return {"now": float(self.count), "count": self.count} if self.count else None

    def saved(self, state: dict[str, Any]) -> None:
        self.saves.append(state["count"])

    def wake(self) -> None:
        self.woken = True

    def end(self) -> None:
        self.until = self.count


def lifecycle(folder: Path | None) -> Lifecycle:
    made = None if folder is None else RunFolder.create(folder, "seed = 1\n", {"clock": "virtual"})
    return Lifecycle(EXPERIMENT, LAYOUT, made)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def interrupt_twice() -> None:
    interrupt()
    interrupt()


def test_a_whole_run_leaves_a_complete_folder(tmp_path: Path) -> None:
    run = lifecycle(tmp_path / "run")
    summary = run.carry_out(Counting(run, 3), None)
    assert (summary["time"], summary["versions"], summary["evaluations"], summary["clock"]) == (3.0, 3, 4, "virtual")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"summary.json", "model.safetensors", "curve.png", "metrics.csv"} <= names
    assert not any(name.startswith("checkpoint") for name in names)


def test_without_a_folder_nothing_is_written_and_nothing_is_saved() -> None:
    run = lifecycle(None)
    driver = Counting(run, 2)
    assert run.carry_out(driver, None)["evaluations"] == 3
    assert driver.saves == []


def test_a_signal_stops_between_two_steps_with_a_checkpoint(tmp_path: Path) -> None:
    run = lifecycle(tmp_path / "run")
    driver = Counting(run, 9, {4: interrupt})
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as stopped:
        run.carry_out(driver, None)
    assert (stopped.value.signal, driver.count, driver.saves, driver.woken) == (signal.SIGTERM, 4, [4], True)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (tmp_path / "run" / "curve.png").exists()
    assert not (tmp_path / "run" / "summary.json").exists()
    assert run.folder is not None
    run.folder.close()
    checkpoint = load_checkpoint(tmp_path / "run", experiment_text(tmp_path / "run"))
    assert checkpoint is not None
    folder = RunFolder.reopen(tmp_path / "run")
    folder.rewind(checkpoint.positions)
    again = Lifecycle(EXPERIMENT, LAYOUT, folder)
    summary = again.carry_out(Counting(again, 9), checkpoint)
    assert (summary["evaluations"], summary["time"]) == (10, 9.0)
    assert summary["wall_seconds"] >= checkpoint.wall_seconds


def test_a_second_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    run = lifecycle(tmp_path / "run")
    driver = Counting(run, 9, {4: interrupt_twice})
    with pytest.raises(KeyboardInterrupt):
        run.carry_out(driver, None)
    assert driver.saves == []


def test_a_run_that_is_stopped_before_it_began_has_no_checkpoint(tmp_path: Path) -> None:
    run = lifecycle(tmp_path / "run")
    driver = Counting(run, 9)
    driver.begin = lambda state: interrupt()  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        run.carry_out(driver, None)
    assert not (tmp_path / "run" / "checkpoint.json").exists()


def test_checkpoints_take_a_bounded_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a checkpoint that takes 2 s, the next one comes at least 40 s later."""
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def slow_save(*_: object) -> None:
        clock[0] += 2.0

    monkeypatch.setattr("cabafl.lifecycle.run.write_snapshot", slow_save)
    run = lifecycle(tmp_path / "run")
    run.experiment = load_experiment(None, ["run.checkpoint_every=1"])
    saved: list[float] = []
    driver = Counting(run, 100, {})
    step = driver.step

    def timed_step() -> bool:
        while any(thread.name == "checkpoint" for thread in threading.enumerate()):
            time.sleep(0.001)  # the writer finds the clock as it was when its work began
        clock[0] += 1.0
        return step()

    driver.step = timed_step  # type: ignore[method-assign]
    driver.saved = lambda state: saved.append(clock[0])  # type: ignore[method-assign]
    run.carry_out(driver, None)
    assert saved[0] == 5.0  # due at 2.0, written at 4.0, noticed after the next step
    assert 42.0 < saved[1] - saved[0] <= 45.0
