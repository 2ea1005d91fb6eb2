"""Jobs on Ray actors, on this machine or on a cluster.

Samples go into Ray's object store once; every actor builds its task from them and keeps it. Weights that go to several
actors are stored once, too. Ray is imported only if an experiment uses it.
"""

import contextlib
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import torch

from cabafl.errors import RunStopped, UserError
from cabafl.execution.base import (
    JOBS_PER_WORKER,
    ExecutorJob,
    QueuedExecutor,
    TrainJob,
    Warn,
    run_job,
    without_vectors,
)
from cabafl.execution.task_arrays import Arrays, arrays_of, build_task
from cabafl.learning.spec import TaskSpec
from cabafl.learning.task import Task, TrainingResult
from cabafl.methods.base import Weights

ACCEPTED_ADDRESSES = "auto (the cluster this machine belongs to) or host:port of its head node"
INLINE_BYTES = 100 * 1024  # Ray sends smaller arguments with the call; larger ones go through the object store
CONNECT_TIMEOUT = 5.0  # seconds
START_WARNING_SECONDS = 60.0  # without any actor, before the user is warned


class Node(NamedTuple):
    """A machine and the software versions that decide whether it computes the same bits."""

    host: str
    cabafl: str
    torch: str

    @classmethod
    def here(cls) -> "Node":
        """The machine and versions of the calling process."""
        return cls(socket.gethostname(), version("cabafl"), str(torch.__version__))


class TaskActor:
    """Runs in the actor: builds the task once, then runs jobs one after another."""

    def __init__(self, path: list[str]) -> None:
        torch.set_num_threads(1)
        sys.path += [entry for entry in path if entry not in sys.path]
        # torch warns that arrays of the object store are read-only; a task only reads them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ", category=UserWarning)

    def prepare(self, spec: TaskSpec, processor: str, arrays: Arrays) -> Node:
        """Builds the task on arrays of the object store; returns this node for the version check."""
        self.task = build_task(spec, processor, arrays)
        return Node.here()

    def run(self, job: ExecutorJob, weights: Weights, correction: Weights | None) -> Any:
        """Returns the job's result, or its exception as a `RuntimeError` with the traceback."""
        job = job._replace(weights=weights)
        if isinstance(job, TrainJob):
            job = job._replace(correction=correction)
        try:
            return run_job(self.task, job)
        except UserError as error:
            return UserError(str(error))
        except Exception:
            return RuntimeError(traceback.format_exc())


@dataclass(eq=False)
class _Actor:
    handle: Any
    pending: dict[Any, int | None] = field(default_factory=dict)  # Ray reference: ticket, or None for `prepare`
    ready: bool = False


class RayExecutor(QueuedExecutor):
    """`Executor` on ``actors`` Ray actors with one CPU and ``gpus`` GPUs each."""

    def __init__(self, ray: Any, actors: int, gpus: float = 0.0, warn: Warn | None = None) -> None:
        super().__init__("Ray actor", "Ray actors", warn)
        self._ray = ray
        options = {"num_cpus": 1, "max_restarts": 0, **({"num_gpus": gpus} if gpus else {})}
        self._actor_class = ray.remote(TaskActor).options(**options)
        self._last_stored: tuple[Weights, Any] | None = None  # weights and their reference in the object store
        self._actors = [self._start() for _ in range(actors)]
        self._warn_at = time.monotonic() + START_WARNING_SECONDS

    def _start(self) -> _Actor:
        return _Actor(self._actor_class.remote(sys.path))

    def _load(self, task: Task) -> None:
        """Puts the samples into the object store and lets every actor build the task."""
        self._spec, self._processor = task.spec, str(task.processor)
        self._arrays = self._ray.put(arrays_of(task))
        for actor in self._actors:
            self._send_task(actor)

    def _send_task(self, actor: _Actor) -> None:
        actor.pending[actor.handle.prepare.remote(self._spec, self._processor, self._arrays)] = None

    def close(self) -> None:
        """Kills the actors."""
        for actor in self._actors:
            with contextlib.suppress(Exception):  # the actor or the cluster is already gone
                self._ray.kill(actor.handle)
        self._actors.clear()

    def _send_jobs(self) -> None:
        """Sends jobs to actors that are ready; the cluster may not have room to start all of them."""
        while self._waiting:
            free = [actor for actor in self._actors if actor.ready and len(actor.pending) < JOBS_PER_WORKER]
            chosen = self._next_job() if free else None
            if chosen is None:
                return
            ticket, job = chosen
            actor = min(free, key=lambda a: len(a.pending))
            correction = self._correction_argument(job.correction) if isinstance(job, TrainJob) else None
            weights = self._weights_argument(job.weights)
            actor.pending[actor.handle.run.remote(without_vectors(job), weights, correction)] = ticket

    def _weights_argument(self, weights: Weights) -> Any:
        """The weights, or their reference in the object store. Jobs with equal weights are usually consecutive."""
        if weights.nbytes <= INLINE_BYTES:
            return weights
        if self._last_stored is None or self._last_stored[0] is not weights:
            self._last_stored = weights, self._ray.put(weights)
        return self._last_stored[1]

    def _correction_argument(self, correction: Weights | None) -> Any:
        """Each device has its own."""
        if correction is None or correction.nbytes <= INLINE_BYTES:
            return correction
        return self._ray.put(correction)

    def _receive(self, timeout: float) -> None:
        owners = {reference: actor for actor in self._actors for reference in actor.pending}
        for reference in self._arrived(list(owners), timeout):
            if reference in owners[reference].pending:  # else its actor was just replaced
                self._take_result(owners[reference], reference)
        if not any(actor.ready for actor in self._actors):
            self._warn_if_late()
        self._send_jobs()

    def _arrived(self, references: list[Any], timeout: float) -> list[Any]:
        first, _ = self._ray.wait(references, num_returns=1, timeout=timeout)
        if not first:
            return []
        arrived, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        return list(arrived)

    def _take_result(self, actor: _Actor, reference: Any) -> None:
        try:
            result = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._fail(actor, error)
            return
        ticket = actor.pending.pop(reference)
        if ticket is None:
            self._check_versions(actor, result)
        else:
            self._finish(ticket, in_own_memory(result))

    def _check_versions(self, actor: _Actor, node: Node) -> None:
        """Marks an actor as ready if its node has the versions of this process; raises `UserError` otherwise."""
        here = Node.here()
        if node[1:] != here[1:]:
            raise UserError(
                f"run.executor = 'ray': {node.host} has cabafl {node.cabafl} and torch {node.torch}; "
                f"accepted: the versions of this machine, {here.cabafl} and {here.torch}"
            )
        actor.ready = True

    def _fail(self, actor: _Actor, error: Exception) -> None:
        """Jobs return their exceptions, so an error raised by Ray means that an actor cannot start or has died."""
        if isinstance(error, self._ray.exceptions.RayTaskError) or getattr(error, "actor_init_failed", False):
            raise RunStopped(f"a Ray actor cannot start: {_last_line(error)}")
        self._replace(actor, error)

    def _replace(self, dead: _Actor, error: Exception) -> None:
        """Starts a new actor in place of one that died or is unreachable, and queues its jobs again."""
        index = self._actors.index(dead)
        tickets = [ticket for ticket in dead.pending.values() if ticket is not None]
        dead.pending.clear()
        with contextlib.suppress(Exception):
            self._ray.kill(dead.handle)
        self._requeue(tickets, dead.ready, type(error).__name__)
        self._actors[index] = self._start()
        self._send_task(self._actors[index])

    def _warn_if_late(self) -> None:
        if time.monotonic() > self._warn_at:
            self._warn_at = float("inf")
            free = self._ray.available_resources().get("CPU", 0.0)
            self.warn(f"still waiting for the first of {len(self._actors)} Ray actors (free CPUs: {free:g})")


def in_own_memory(result: Any) -> Any:
    """A result with its array copied: arrays of the object store are read-only and keep their memory allocated."""
    if isinstance(result, TrainingResult):
        return result._replace(weights=result.weights.copy())
    return result.copy() if isinstance(result, np.ndarray) else result


@contextlib.contextmanager
def open_ray(
    workers: int | str, cores: int, address: str | None, device: str, warn: Warn | None = None
) -> Iterator[RayExecutor]:
    """An executor on the Ray cluster at ``address``, or on a new local Ray if it is None.

    ``workers`` = auto: one actor per CPU of the cluster, or ``cores`` actors on a local Ray.
    """
    if workers == 0:
        raise UserError("run.workers = 0: run.executor = 'ray' needs actors; accepted: auto or a number from 1")
    if device.startswith("cuda:"):
        raise UserError(f"run.device = {device!r}: Ray assigns the GPUs; accepted: cpu, cuda")
    ray = import_ray()
    with _connection(ray, address, workers if isinstance(workers, int) else cores):
        resources = ray.cluster_resources()
        count = workers if isinstance(workers, int) else max(1, int(resources.get("CPU", 1)))
        gpus = gpu_share(int(resources.get("GPU", 0)), count) if device == "cuda" else 0.0
        with contextlib.closing(RayExecutor(ray, count, gpus, warn)) as executor:
            yield executor


def gpu_share(gpus: int, actors: int) -> float:
    """The fraction of a GPU per actor that spreads all actors evenly; Ray counts in units of 1/10,000."""
    if gpus == 0:
        raise UserError("run.device = 'cuda': the Ray cluster has no GPU; accepted: cpu, or nodes with --num-gpus")
    return (10_000 // -(-actors // gpus)) / 10_000


def import_ray() -> Any:
    """Imports Ray, after setting the environment variables that it reads when it starts."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default; avoids a warning
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default, 15, starves on busy cores
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UserError(
            "run.executor = 'ray': Ray is not installed; install it with: pip install 'cabafl[ray]'"
        ) from None


@contextlib.contextmanager
def _connection(ray: Any, address: str | None, cpus: int) -> Iterator[None]:
    """Connects to Ray and disconnects afterwards; a connection the caller already has is used and kept open."""
    if address is not None:
        _check_reachable(address)
    if ray.is_initialized():
        if address is not None:
            raise UserError(f"run.ray_address = {address!r}: this process is already connected to Ray; accepted: none")
        yield
        return
    try:
        _init(ray, address, cpus)
        yield
    finally:
        ray.shutdown()


def _init(ray: Any, address: str | None, cpus: int) -> None:
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        with _keep_sigterm_handler():
            if address is None:
                ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
            else:
                ray.init(address=address, **quiet)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        hint = "" if address is None else "; token and versions of Ray and Python must match the cluster"
        raise UserError(_unreachable(address, _last_line(error) + hint)) from None


def _unreachable(address: str | None, why: str) -> str:
    if address is None:
        return f"run.executor = 'ray': Ray cannot start: {why}"
    return f"run.ray_address = {address!r}: no connection to a Ray cluster ({why}); accepted: {ACCEPTED_ADDRESSES}"


def _check_reachable(address: str) -> None:
    """Fails within seconds if nothing listens at ``address``; Ray itself keeps trying for minutes."""
    target = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    if target == "auto":
        return
    host, _, port = target.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:  # ray://host is Ray Client
        raise UserError(_unreachable(address, "not an address"))
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
    except (OSError, OverflowError) as error:  # OverflowError: port above 65535
        raise UserError(_unreachable(address, str(error))) from None


@contextlib.contextmanager
def _keep_sigterm_handler() -> Iterator[None]:
    """Restores the SIGTERM handler, which Ray replaces when it starts."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
