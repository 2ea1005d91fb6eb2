"""Worker processes: the same bytes for any number of them, dead ones are replaced, none is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cabafl import simulate
from cabafl.config import load_experiment
from cabafl.errors import RunStopped, UserError
from cabafl.execution import base, starting
from cabafl.execution.base import EvaluateJob, TrainJob
from cabafl.execution.choice import open_executor
from cabafl.execution.pool import ProcessExecutor
from cabafl.execution.starting import early_workers, take, worker_count
from cabafl.learning.probe import SAMPLES
from tests.lasting import LastingPools
from tests.runs import ALL_METHODS, AUTO, same_bytes, settings

pytestmark = pytest.mark.usefixtures("no_pixels")

EVERYTHING = "tests.engine.orders_method:Everything"
FULLY = ("fedavg", "cabafl", "fedbuff")  # synchronous, asynchronous, buffered


@pytest.mark.parametrize(
    ("method", "more"), [*((method, []) for method in [*ALL_METHODS, EVERYTHING]), ("cabafl", AUTO)]
)
def test_same_bytes_for_any_number_of_workers(
    method: str, more: list[str], lasting: LastingPools, tmp_path: Path
) -> None:
    simulate(load_experiment(None, settings(method, *more, "run.workers=0")), out=tmp_path / "inline")
    for number in (1, 2, 3) if method in FULLY else (2,):
        with lasting.serving():
            words = settings(method, *more, f"run.workers={number}")
            simulate(load_experiment(None, words), out=tmp_path / str(number))
        same_bytes(tmp_path / "inline", tmp_path / str(number))


def children() -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False).stdout
    names = {
        int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found.split() if Path(f"/proc/{pid}").exists()
    }
    return [pid for pid, name in names.items() if b"cabafl.execution.worker" in name]


def test_killed_workers_are_replaced_and_the_bytes_do_not_change(tmp_path: Path) -> None:
    words = settings("cabafl", "run.workers=2")
    simulate(load_experiment(None, [*words, "run.workers=0"]), out=tmp_path / "quiet")
    others = children()  # of other tests
    warnings: list[str] = []
    seen = 0

    def kill_now_and_then(event: object) -> None:
        nonlocal seen
        seen += 1
        if seen in (60, 150):  # the second kill is that of the new one
            os.kill(children()[-1], signal.SIGKILL)

    simulate(load_experiment(None, words), tmp_path / "killed", kill_now_and_then, warnings.append)
    assert len(warnings) == 2
    assert "worker process died" in warnings[0]
    same_bytes(tmp_path / "quiet", tmp_path / "killed")
    assert children() == others


class Deadly:
    """A network that kills its process; not with the two samples it is tried on."""

    def __new__(cls, input_shape: tuple[int, ...], classes: int) -> object:  # type: ignore[misc]
        from torch import Tensor, nn

        class Bomb(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                if self.training and len(x) > SAMPLES:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().forward(x)

        return Bomb(input_shape[0], classes)


class Faulty:
    """A network whose forward pass raises; not with the two samples it is tried on."""

    def __new__(cls, input_shape: tuple[int, ...], classes: int) -> object:  # type: ignore[misc]
        from torch import Tensor, nn

        class Wrong(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                if self.training and len(x) > SAMPLES:
                    raise ValueError("the mistake")
                return super().forward(x)

        return Wrong(input_shape[0], classes)


def test_a_job_that_keeps_killing_workers_ends_the_run_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_ATTEMPTS", 3)
    words = settings("fedavg", "run.workers=1", f"model.name={__name__}:Deadly")
    with pytest.raises(RunStopped, match=r"^3 worker processes died running the same job"):
        simulate(load_experiment(None, words))


def test_an_exception_in_a_worker_reaches_the_user() -> None:
    words = settings("fedavg", "run.workers=1", f"model.name={__name__}:Faulty")
    with pytest.raises(UserError, match=r"^model\.name = .*:Faulty': fails: ValueError: the mistake \(test_pool\.py"):
        simulate(load_experiment(None, words))


@pytest.mark.parametrize(("number", "count"), [(signal.SIGKILL, 2), (signal.SIGTERM, 1)])
def test_no_worker_survives_the_main_process(number: int, count: int, tmp_path: Path) -> None:
    words = settings("cabafl", f"run.workers={count}", "run.virtual_time=1000000")
    main = subprocess.Popen([sys.executable, "-m", "cabafl", "run", *words, "--quiet", "--out", str(tmp_path / "run")])
    metrics = tmp_path / "run" / "metrics.csv"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") > 3) and time.monotonic() < deadline:
        time.sleep(0.1)
    found = subprocess.run(["pgrep", "-P", str(main.pid)], capture_output=True, text=True, check=False).stdout
    workers = [int(pid) for pid in found.split()]
    assert len(workers) == count
    main.send_signal(number)
    main.wait(timeout=60)
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(alive(pid) for pid in workers)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_urgent_jobs_come_first_and_discarded_ones_not_at_all() -> None:
    experiment = load_experiment(None, settings("fedavg", "run.workers=1"))
    from cabafl.assembly import assemble

    with open_executor(experiment) as workers:
        parts = assemble(experiment)
        executor = workers.for_task(parts.task)
        assert isinstance(executor, ProcessExecutor)
        weights = parts.task.model.save()
        tickets = [executor.submit(TrainJob(n, n, weights), due=100.0 - n) for n in range(6)]
        executor.discard(tickets[4])
        urgent = executor.submit(EvaluateJob(weights, 0), due=0.0)
        executor.result(urgent)
        assert not executor.done(tickets[2])  # two were in the worker's places already, the rest waited
        executor.result(tickets[5])
        assert executor.result(tickets[2]).weights.shape == weights.shape


def test_automatic_number_of_workers() -> None:
    assert worker_count("auto") == len(os.sched_getaffinity(0))
    assert worker_count(0) == 0


def test_workers_that_started_early_are_taken_once() -> None:
    with early_workers(2):
        other, taken, new = take(1), take(2), take(2)
        assert {process.pid for process, _ in taken.started}.isdisjoint(process.pid for process, _ in new.started)
        for processes in (other, new):
            processes.close(processes.started)
    assert [process.poll() for process, _ in taken.started] == [None, None], "whoever takes them closes them"
    taken.close(taken.started)


def test_workers_that_nobody_takes_are_killed() -> None:
    with early_workers(1):
        early = take(1)
        early.close(early.started)
    with early_workers(1):
        [processes] = starting._early
    assert [process.poll() for process, _ in processes.started] == [-signal.SIGKILL]
    assert starting._early == []
