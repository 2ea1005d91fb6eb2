"""The tool that lists the files one job passes."""

import pytest

from tools.job_path import OUTSIDE, ROOT, Call, Stop, describe, path_of_a_job, run

SERVER, DEVICE = 1, 2
LOG = "deployment/log.py"
METHOD = "methods/own.py"


def calls(*lines: tuple[int, str, str, str]) -> list[Call]:
    return [Call(number, *line) for number, line in enumerate(lines)]


def job(*more: tuple[int, str, str, str]) -> list[tuple[int, str, str, str]]:
    """Dispatched by a method, trained in a loop that was entered long before, reported to a log."""
    return [
        (SERVER, METHOD, "engine.py", "dispatch"),
        (DEVICE, "loop.py", "task.py", "train"),
        (DEVICE, "task.py", "task.py", "_train"),
        (DEVICE, OUTSIDE, "library/events.py", "dispatch"),  # begins no job
        *more,
        (SERVER, "engine.py", LOG, "info"),
    ]


def test_what_every_job_passes_in_order() -> None:
    rare = (SERVER, "engine.py", "checkpoint.py", "save")
    found = path_of_a_job(calls(*job(), *job(), *job(rare), *job()), "device")
    assert found == [
        Stop("server", METHOD, helper=False),
        Stop("server", "engine.py", helper=False),
        Stop("device", "loop.py", helper=False),
        Stop("device", "task.py", helper=True),
        Stop("device", "library/events.py", helper=True),
        Stop("server", LOG, helper=True),
    ]
    assert [stop.carries for stop in found] == [True, True, True, True, True, False]
    assert list(describe(found))[-1] == "6 files; 5 carry the job, 3 of them pass it on"


def test_too_few_jobs_are_no_path() -> None:
    with pytest.raises(ValueError, match="3 dispatches"):
        path_of_a_job(calls(*job(), *job(), *job()), "device")


def test_a_simulated_job_goes_to_a_worker_process_and_back() -> None:
    found = path_of_a_job(run("simulated", ROOT / "src"), "worker")
    places = [(stop.process, stop.file) for stop in found]
    assert places[:2] == [("server", "methods/cabafl/method.py"), ("server", "engine/virtual.py")]
    trained = places.index(("worker", "learning/training.py"))
    selected = places.index(("server", "methods/cabafl/selector.py"))
    assert places.index(("server", "execution/pool.py")) < trained < selected
    assert len(places) < 30
