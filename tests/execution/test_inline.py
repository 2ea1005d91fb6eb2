"""Jobs in the calling process run when their result is wanted, and never otherwise."""

import numpy as np
import pytest

from cabafl.config import load_experiment
from cabafl.errors import UserError
from cabafl.execution.base import TrainJob
from cabafl.execution.choice import open_executor
from cabafl.execution.inline import InlineWorkers, LazyExecutor
from cabafl.methods.base import PLAIN


def job(number: int) -> TrainJob:
    return TrainJob(number, 0, np.zeros(1, dtype=np.float32), PLAIN)


def test_a_job_runs_when_its_result_is_wanted() -> None:
    ran: list[object] = []

    def work(given: object) -> int:
        ran.append(given)
        return len(ran)

    executor = LazyExecutor(1, [], work)
    first, second, third = (executor.submit(job(number), due=-number) for number in range(3))
    executor.discard(second)
    assert ran == []
    assert executor.done(third)
    assert executor.result(third) == 1
    assert executor.result(first) == 2
    assert len(ran) == 2
    with pytest.raises(KeyError):
        executor.result(first)  # once per ticket


def test_an_interrupt_comes_before_the_job() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    executor = LazyExecutor(1, [], lambda _: 1 / 0)
    ticket = executor.submit(job(0))
    with pytest.raises(KeyboardInterrupt):
        executor.result(ticket, stop)
    with pytest.raises(ZeroDivisionError):
        executor.result(ticket)  # the job was kept


def test_no_workers_means_this_process() -> None:
    with open_executor(load_experiment(None, ["run.workers=0"])) as workers:
        assert isinstance(workers, InlineWorkers)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_an_address_of_ray_needs_ray(workers: str) -> None:
    experiment = load_experiment(None, [f"run.workers={workers}", "run.ray_address=auto"])
    with pytest.raises(UserError, match=r"run\.ray_address = 'auto': needs run\.executor = 'ray', not 'local'"):
        open_executor(experiment)
