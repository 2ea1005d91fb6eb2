"""Jobs on Ray actors, on this machine or on a cluster.

Samples go into Ray's object store once; every actor builds its task from them and keeps it. Weights that travel
to several actors are stored once too. Ray is imported only when an experiment asks for it.
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

from cabafl.errors import UserError
from cabafl.execution.base import ExecutorJob
from cabafl.execution.inline import carry_out
from cabafl.execution.queued import PLACES, QueuedExecutor, Warn, WorkersDie
from cabafl.execution.sharing import Arrays, arrays_of, build_task
from cabafl.learning.spec import TaskSpec
from cabafl.learning.task import Task
from cabafl.methods.base import Weights

ADDRESSES = "auto (the cluster this machine belongs to) or the host:port of its head node"
INLINE_BYTES = 100 * 1024  # Ray sends smaller arguments along with the call; larger ones go through the store
CONNECT_SECONDS = 5.0
PATIENCE_SECONDS = 60.0  # without any actor before the user is told


class Node(NamedTuple):
    """What decides whether another machine computes the same bits, as far as software does."""

    host: str
    cabafl: str
    torch: str

    @classmethod
    def here(cls) -> "Node":
        """Of the calling process."""
        return cls(socket.gethostname(), version("cabafl"), str(torch.__version__))


class TaskActor:
    """The far end: builds the task once, then carries out jobs one after the other."""

    def __init__(self, path: list[str]) -> None:
        torch.set_num_threads(1)
        sys.path += [entry for entry in path if entry not in sys.path]
        # Arrays of the object store are read-only. Nobody writes to them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ", category=UserWarning)

    def prepare(self, spec: TaskSpec, processor: str, arrays: Arrays) -> Node:
        """Builds the task on the shared arrays."""
        self.task = build_task(spec, processor, arrays)
        return Node.here()

    def carry_out(self, job: ExecutorJob, weights: Weights) -> Any:
        """The job's result, or the exception it ended with."""
        try:
            return carry_out(self.task, job._replace(weights=weights))
        except Exception:
            return RuntimeError(traceback.format_exc())


@dataclass(eq=False)
class _Actor:
    handle: Any
    pending: dict[Any, int | None] = field(default_factory=dict)  # result reference: ticket; None: its preparation
    ready: bool = False


class RayExecutor(QueuedExecutor):
    """`Executor` on ``actors`` Ray actors of one CPU and ``gpus`` GPUs each."""

    def __init__(self, ray: Any, actors: int, gpus: float = 0.0, warn: Warn | None = None) -> None:
        super().__init__("Ray actor", "Ray actors", warn)
        self._ray = ray
        options = {"num_cpus": 1, "max_restarts": 0, **({"num_gpus": gpus} if gpus else {})}
        self._kind = ray.remote(TaskActor).options(**options)
        self._stored: tuple[Weights, Any] | None = None  # weights put into the store last, and their reference
        self._actors = [self._start() for _ in range(actors)]
        self._patient_until = time.monotonic() + PATIENCE_SECONDS

    def _start(self) -> _Actor:
        return _Actor(self._kind.remote(sys.path))

    def load(self, task: Task) -> None:
        """Puts the samples into the object store and lets every actor build the task."""
        super().load(task)
        self._spec, self._processor = task.spec, str(task.processor)
        self._arrays = self._ray.put(arrays_of(task))
        for actor in self._actors:
            self._introduce(actor)

    def _introduce(self, actor: _Actor) -> None:
        actor.pending[actor.handle.prepare.remote(self._spec, self._processor, self._arrays)] = None

    def close(self) -> None:
        """Ends the actors at once."""
        for actor in self._actors:
            with contextlib.suppress(Exception):  # it, or the cluster, is gone already
                self._ray.kill(actor.handle)
        self._actors.clear()

    def _feed(self) -> None:
        """Actors that have not come up get nothing yet: the cluster may have no room for all of them."""
        while self._waiting:
            free = [actor for actor in self._actors if actor.ready and len(actor.pending) < PLACES]
            chosen = self._next() if free else None
            if chosen is None:
                return
            ticket, job = chosen
            actor = min(free, key=lambda a: len(a.pending))
            reference = actor.handle.carry_out.remote(job._replace(weights=_NOTHING), self._sendable(job.weights))
            actor.pending[reference] = ticket

    def _sendable(self, weights: Weights) -> Any:
        """The weights, or where they are in the store; jobs with the same weights mostly follow one another."""
        if weights.nbytes <= INLINE_BYTES:
            return weights
        if self._stored is None or self._stored[0] is not weights:
            self._stored = weights, self._ray.put(weights)
        return self._stored[1]

    def _pump(self, timeout: float) -> None:
        owners = {reference: actor for actor in self._actors for reference in actor.pending}
        for reference in self._arrived(list(owners), timeout):
            if reference in owners[reference].pending:  # else its actor was replaced a moment ago
                self._take(owners[reference], reference)
        if not any(actor.ready for actor in self._actors):
            self._lose_patience()
        self._feed()

    def _arrived(self, references: list[Any], timeout: float) -> list[Any]:
        first, _ = self._ray.wait(references, num_returns=1, timeout=timeout)
        if not first:
            return []
        arrived, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        return list(arrived)

    def _take(self, actor: _Actor, reference: Any) -> None:
        try:
            result = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._fail(actor, error)
            return
        ticket = actor.pending.pop(reference)
        if ticket is None:
            self._welcome(actor, result)
        else:  # a copy: arrays of the store are read-only and would stay there
            self._finish(ticket, result.copy() if isinstance(result, np.ndarray) else result)

    def _welcome(self, actor: _Actor, node: Node) -> None:
        here = Node.here()
        if node[1:] != here[1:]:
            raise UserError(
                f"run.executor = 'ray': {node.host} has cabafl {node.cabafl} and torch {node.torch}; "
                f"accepted: the versions of this machine, {here.cabafl} and {here.torch}"
            )
        actor.ready = True

    def _fail(self, actor: _Actor, error: Exception) -> None:
        """Exceptions of jobs come as results: what Ray raises is an actor that cannot be built, or one that is lost."""
        if isinstance(error, self._ray.exceptions.RayTaskError) or getattr(error, "actor_init_failed", False):
            raise WorkersDie(f"a Ray actor cannot start: {_last_line(error)}")
        self._replace(actor, error)

    def _replace(self, dead: _Actor, error: Exception) -> None:
        """A new actor in the place of one that died or is out of reach."""
        index = self._actors.index(dead)
        tickets = [ticket for ticket in dead.pending.values() if ticket is not None]
        dead.pending.clear()
        with contextlib.suppress(Exception):
            self._ray.kill(dead.handle)
        self._lose(tickets, dead.ready, type(error).__name__)
        self._actors[index] = self._start()
        self._introduce(self._actors[index])

    def _lose_patience(self) -> None:
        if time.monotonic() > self._patient_until:
            self._patient_until = float("inf")
            free = self._ray.available_resources().get("CPU", 0.0)
            self.warn(f"still waiting for the first of {len(self._actors)} Ray actors (free CPUs: {free:g})")


@contextlib.contextmanager
def open_ray(
    workers: int | str, cores: int, address: str | None, device: str, warn: Warn | None = None
) -> Iterator[RayExecutor]:
    """An executor on a new local Ray (of ``cores`` actors if ``workers`` is auto), or on the cluster at ``address``."""
    if workers == 0:
        raise UserError("run.workers = 0: run.executor = 'ray' needs actors; accepted: auto or a number from 1")
    if device.startswith("cuda:"):
        raise UserError(f"run.device = {device!r}: Ray gives each actor its GPU; accepted: cpu, cuda")
    ray = import_ray()
    with _joined(ray, address, workers if isinstance(workers, int) else cores):
        resources = ray.cluster_resources()
        count = workers if isinstance(workers, int) else max(1, int(resources.get("CPU", 1)))
        gpus = gpu_share(int(resources.get("GPU", 0)), count) if device == "cuda" else 0.0
        with contextlib.closing(RayExecutor(ray, count, gpus, warn)) as executor:
            yield executor


def gpu_share(gpus: int, actors: int) -> float:
    """The part of a GPU that lets all actors have one, shared as evenly as possible; Ray counts in 1/10,000."""
    if gpus == 0:
        raise UserError("run.device = 'cuda': the Ray cluster has no GPU; accepted: cpu, or nodes with --num-gpus")
    return (10_000 // -(-actors // gpus)) / 10_000


def import_ray() -> Any:
    """The package, with the settings that must be in force before it starts anything."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default; it warns about the old one
    os.environ.setdefault(
        "RAY_worker_niceness", "0"
    )  # as worker processes; Ray's own choice, 15, starves on busy cores
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UserError(
            "run.executor = 'ray': Ray is not installed; install it with: pip install 'cabafl[ray]'"
        ) from None


@contextlib.contextmanager
def _joined(ray: Any, address: str | None, cpus: int) -> Iterator[None]:
    """A connection to Ray, ended afterwards; one that the caller already had is used and kept."""
    if address is not None:
        _check_reachable(address)
    if ray.is_initialized():
        if address is not None:
            raise UserError(f"run.ray_address = {address!r}: this process has a connection to Ray; accepted: none")
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
        with _own_sigterm():
            if address is None:
                ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
            else:
                ray.init(address=address, **quiet)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        hint = "" if address is None else "; token and versions of Ray and Python must be those of the cluster"
        raise UserError(_unreachable(address, _last_line(error) + hint)) from None


def _unreachable(address: str | None, why: str) -> str:
    if address is None:
        return f"run.executor = 'ray': Ray does not start: {why}"
    return f"run.ray_address = {address!r}: no connection to a Ray cluster ({why}); accepted: {ADDRESSES}"


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    target = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    if target == "auto":
        return
    host, _, port = target.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:  # ray://host is a Ray Client server
        raise UserError(_unreachable(address, "not an address"))
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:  # a port above 65535 overflows
        raise UserError(_unreachable(address, str(error))) from None


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray installs a handler when it starts; the one that was there stays."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


_NOTHING = np.zeros(0, dtype=np.float32)
