"""Loggers of one's own: what they get, and what happens to the run if they are slow or fail."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cabafl import Experiment, UserError, load_experiment, resume, simulate
from cabafl.lifecycle.stopping import Paused
from cabafl.loggers import desk
from cabafl.recording.folder import read_metrics
from tests.loggers.own import Remembers, Slow
from tests.runs import same_bytes, settings

OWN = "tests.loggers.own"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    Remembers.calls.clear()
    Remembers.known = 0
    yield
    Remembers.known = 0


def experiment(*more: str) -> Experiment:
    return load_experiment(None, settings("fedavg", "run.workers=0", *more))


def log_of(name: str) -> str:
    return f"run.log={OWN}:{name}"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without a logger."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    simulate(experiment(), folder)
    return folder


def test_a_logger_gets_the_rows_of_metrics_and_the_end(tmp_path: Path, plain: Path) -> None:
    result = simulate(experiment(log_of("Remembers")), tmp_path / "run")
    same_bytes(tmp_path / "run", plain)
    begin, *logs, finish, close = Remembers.calls
    assert close == ("close",)
    assert finish == ("finish", result.summary, tmp_path / "run" / "model.safetensors")
    rows = read_metrics(tmp_path / "run")
    expected = [("log", i, dict(zip(row.columns, row.numbers, strict=True))) for i, row in enumerate(rows)]
    assert logs == expected
    run = begin[1]
    assert (run.name, run.folder, run.clock) == ("run", tmp_path / "run", "virtual")
    assert abs(run.started - time.time()) < 600
    assert (run.settings["data.devices"], run.settings["method.name"], run.settings["seed"]) == (12, "fedavg", 1)
    assert "method.normaliser" in run.settings  # the method's own defaults, too


def test_without_a_folder(tmp_path: Path) -> None:
    simulate(experiment(log_of("Remembers"), "run.virtual_time=10"))
    assert Remembers.calls[0][1].folder is None
    assert Remembers.calls[0][1].name == "fedavg-seed1"
    assert Remembers.calls[-2][2] is None
    for name in ("tensorboard", "mlflow", "wandb"):
        with pytest.raises(UserError, match=rf"^run.log = '{name}': needs a run folder \(out\)"):
            simulate(experiment(f"run.log={name}"))


@pytest.mark.parametrize("where", ["FailsWhenMade", "FailsInBegin", "FailsInLog", "FailsInFinish", "FailsInClose"])
def test_a_logger_that_fails_warns_once_and_the_run_goes_on(where: str, tmp_path: Path, plain: Path) -> None:
    said: list[str] = []
    both = experiment(f"run.log={OWN}:{where},{OWN}:Remembers")
    simulate(both, tmp_path / "run", warn=said.append)
    [line] = said
    assert line.startswith(f"run.log = '{OWN}:{where}': fails, and the run goes on without it: ")
    assert "left in" in line
    assert "\n" not in line
    same_bytes(tmp_path / "run", plain)
    assert Remembers.steps() == list(range(len(read_metrics(plain))))  # the other one is not disturbed


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Misses", "NotImplementedError"), ("Quits", "SystemExit: left in log"), ("Forgets", "begin returns None")],
)
def test_a_logger_that_breaks_the_contract_is_told_why(name: str, reason: str) -> None:
    said: list[str] = []
    simulate(experiment(log_of(name), "run.virtual_time=10"), warn=said.append)
    [line] = said
    assert reason in line


def test_a_slow_logger_does_not_delay_the_run(tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """13 evaluations of half a second each; the run itself takes a fraction of that."""
    monkeypatch.setattr(desk, "PATIENCE", 0.1)
    said: list[str] = []
    summary = simulate(experiment(log_of("Slow")), tmp_path / "run", warn=said.append).summary
    taken = len(Slow.steps())
    assert taken < 0.5 * summary["evaluations"]
    assert summary["wall_seconds"] < 0.5 * summary["evaluations"] * 0.5
    assert said == [f"run.log = '{OWN}:Slow': has not taken everything 0.1 s after the end; what is missing is lost"]
    same_bytes(tmp_path / "run", plain)


def test_a_run_that_goes_on_logs_every_step_once(tmp_path: Path) -> None:
    with pytest.raises(Paused):
        simulate(experiment(log_of("Remembers")), tmp_path / "run", until=30)
    before = len(Remembers.steps())
    assert Remembers.calls[-1] == ("close",)
    assert "finish" not in {call[0] for call in Remembers.calls}
    Remembers.known = before - 2  # the last two did not reach the disk
    resume(tmp_path / "run")
    rows = read_metrics(tmp_path / "run")
    assert Remembers.steps() == [*range(before), *range(before - 2, len(rows))]
    Remembers.calls.clear()
    Remembers.known = len(rows) + 3  # what it has is kept, and not logged again
    resume(tmp_path / "run", settings=["run.virtual_time=120"])
    rows = read_metrics(tmp_path / "run")
    assert Remembers.steps() == list(range(Remembers.known, len(rows)))
    assert Remembers.calls[-2][0] == "finish"


def test_a_logger_can_be_added_on_resume(tmp_path: Path) -> None:
    with pytest.raises(Paused):
        simulate(experiment(), tmp_path / "run", until=30)
    resume(tmp_path / "run", settings=[log_of("Remembers")])
    rows = read_metrics(tmp_path / "run")
    assert Remembers.steps() == list(range(len(rows)))
    accuracies = [call[2]["accuracy"] for call in Remembers.calls if call[0] == "log"]
    np.testing.assert_array_equal(accuracies, [row.value for row in rows])
