"""Ray actors: the same bytes as without them, dead ones are replaced, errors are one line, nothing is left behind."""

import importlib.util
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import numpy.typing as npt
import pytest

from cabafl import simulate
from cabafl.config import load_experiment
from cabafl.errors import UserError
from cabafl.execution.base import EvaluateJob
from cabafl.execution.ray_cluster import INLINE_BYTES, Node, RayExecutor, gpu_share, import_ray
from cabafl.learning.task import TrainingResult
from tests.execution.test_pool import EVERYTHING, alive
from tests.runs import METHODS, same_bytes, settings

pytestmark = pytest.mark.usefixtures("no_pixels")
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'cabafl[ray]'"
)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """One Ray for several tests, because it starts slowly."""
    ray = import_ray()
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    yield ray
    ray.shutdown()


def run(out: Path | None, *words: str, method: str = "fedavg", **options: Any) -> None:
    simulate(load_experiment(None, settings(method, *words)), out, **options)


# Mistakes of the user; most are found without Ray


def refused(*words: str) -> str:
    with pytest.raises(UserError) as caught:
        run(None, "run.executor=ray", *words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_ray_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'cabafl[ray]'" in refused()


def test_ray_needs_actors() -> None:
    assert "run.workers = 0" in refused("run.workers=0")


def test_ray_chooses_the_gpu() -> None:
    assert "accepted: cpu, cuda" in refused("run.device=cuda:1")


def test_an_address_without_ray_is_refused() -> None:
    assert "run.executor = 'ray'" in refused("run.executor=local", "run.ray_address=auto")


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:70000", "ray://127.0.0.1:10001", "nonsense"])
def test_an_address_without_a_cluster_is_one_line(address: str) -> None:
    message = refused(f"run.ray_address={address}")
    assert message.startswith(f"run.ray_address = {address!r}")
    assert "host:port" in message


def test_nodes_must_have_the_same_versions() -> None:
    executor = RayExecutor(MagicMock(), 1)
    (actor,) = executor._actors
    executor._check_versions(actor, Node.here()._replace(host="elsewhere"))
    with pytest.raises(UserError, match="elsewhere has cabafl 0 "):
        executor._check_versions(actor, Node("elsewhere", "0", "1"))


def test_large_corrections_go_through_the_object_store() -> None:
    executor = RayExecutor(MagicMock(), 1)
    small, large = np.zeros(10, dtype=np.float32), np.zeros(INLINE_BYTES, dtype=np.float32)
    assert executor._correction_argument(None) is None
    assert executor._correction_argument(small) is small
    assert executor._correction_argument(large) is executor._ray.put.return_value


@pytest.mark.parametrize("wrap", [TrainingResult, np.asarray])
def test_results_do_not_stay_in_the_object_store(wrap: Callable[[npt.NDArray[np.float32]], Any]) -> None:
    stored = np.ones(3, dtype=np.float32)
    stored.flags.writeable = False  # as Ray hands it over
    executor = RayExecutor(ray := MagicMock(), 1)
    ray.get.return_value, ray.exceptions.RayError = wrap(stored), ValueError
    (actor,) = executor._actors
    actor.pending["reference"] = ticket = executor.submit(EvaluateJob(stored, 0))
    executor._take_result(actor, "reference")
    result = executor.result(ticket)
    array = result.weights if isinstance(result, TrainingResult) else result
    assert array.tolist() == [1, 1, 1]
    assert array.flags.writeable
    assert not np.shares_memory(array, stored)


def test_actors_share_gpus_evenly() -> None:
    assert gpu_share(4, 2) == gpu_share(4, 4) == 1.0
    assert gpu_share(1, 3) == 0.3333
    assert gpu_share(2, 3) == 0.5
    with pytest.raises(UserError, match="no GPU"):
        gpu_share(0, 2)


# Runs


@needs_ray
@pytest.mark.parametrize(("method", "actors"), [*zip(METHODS, (2, 1), strict=True), (EVERYTHING, 1)])
def test_same_bytes_as_without_ray(ray: Any, method: str, actors: int, tmp_path: Path) -> None:
    run(tmp_path / "inline", "run.workers=0", method=method)
    run(tmp_path / "ray", "run.executor=ray", f"run.workers={actors}", method=method)
    same_bytes(tmp_path / "inline", tmp_path / "ray")
    assert ray.is_initialized()  # the caller's own connection is left alone


@needs_ray
def test_killed_actors_are_replaced_and_the_bytes_do_not_change(ray: Any, tmp_path: Path) -> None:
    run(tmp_path / "quiet", "run.workers=0", method="cabafl")
    warnings: list[str] = []
    seen, killed = 0, 0

    def kill_once(event: object) -> None:
        nonlocal seen, killed
        seen += 1
        if seen == 60:
            for pid, name in descendants(os.getpid()).items():
                if "TaskActor" in name:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1

    words = ["run.executor=ray", "run.workers=auto"]
    run(tmp_path / "killed", *words, method="cabafl", listener=kill_once, warn=warnings.append)
    assert len(warnings) == killed > 0  # one of the two may come up only after the other has worked for a while
    assert "Ray actor died" in warnings[0]
    same_bytes(tmp_path / "quiet", tmp_path / "killed")


@needs_ray
def test_an_exception_in_an_actor_reaches_the_user(ray: Any) -> None:
    with pytest.raises(UserError, match=r"^model\.name = .*:Faulty': fails: ValueError: the mistake \(test_pool\.py"):
        run(None, "run.executor=ray", "run.workers=1", "model.name=tests.execution.test_pool:Faulty")


@needs_ray
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_actor_survives_the_main_process(number: int, tmp_path: Path) -> None:
    words = settings("cabafl", "run.executor=ray", "run.workers=1", "run.virtual_time=1000000")
    main = subprocess.Popen([sys.executable, "-m", "cabafl", "run", *words, "--quiet", "--out", str(tmp_path / "run")])
    metrics = tmp_path / "run" / "metrics.csv"
    until(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") > 3, 60.0)
    family = descendants(main.pid)
    assert len(family) > 3
    main.send_signal(number)
    code = main.wait(timeout=60)
    if number == signal.SIGTERM:
        assert code == 128 + number
        assert list((tmp_path / "run").glob("checkpoint*"))
    else:  # two helpers of Ray first try to reach their dead neighbours, for about a minute
        family = {pid: name for pid, name in family.items() if not name.endswith("Agent")}
    until(lambda: not any(alive(pid) for pid in family))


def until(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def descendants(pid: int) -> dict[int, str]:
    """Command lines of the descendants of a process, by process ID."""
    found = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    table = {
        int(child): (int(parent), name) for child, parent, name in (row.split(None, 2) for row in found.splitlines())
    }
    family = {pid}
    while more := {child for child, (parent, _) in table.items() if parent in family} - family:
        family |= more
    return {child: table[child][1] for child in family - {pid}}
