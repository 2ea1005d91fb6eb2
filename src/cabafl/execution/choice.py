"""Starts the executor that an experiment asks for."""

from contextlib import AbstractContextManager, closing, nullcontext
from typing import Protocol

from cabafl.config import Experiment
from cabafl.errors import UserError
from cabafl.execution.base import Executor, Warn
from cabafl.execution.inline import InlineWorkers
from cabafl.execution.pool import ProcessExecutor
from cabafl.execution.ray_cluster import open_ray
from cabafl.execution.starting import worker_count
from cabafl.learning.task import Task
from cabafl.toml import flatten


class Workers(Protocol):
    """Workers without a task yet: they start up while the main process reads the data."""

    def for_task(self, task: Task) -> Executor:
        """Gives the workers the task and returns their executor. Call it once."""


def _of_this_session(experiment: Experiment) -> str | None:
    """The first setting that names something defined in a notebook or the script itself, if any."""
    sections = {name: getattr(experiment, name).model_dump() for name in ("model", "task", "training")}
    for key, value in flatten(sections).items():
        if isinstance(value, str) and value.startswith("__main__:"):
            return f"{key} = {value!r}"
    return None


def open_executor(experiment: Experiment, warn: Warn | None = None) -> AbstractContextManager[Workers]:
    """Starts the workers; leaving the context stops them."""
    run = experiment.run
    if run.executor == "ray":
        return open_ray(run.workers, worker_count("auto"), run.ray_address, run.device, warn)
    if run.ray_address is not None:
        raise UserError(f"run.ray_address = {run.ray_address!r}: needs run.executor = 'ray', not {run.executor!r}")
    workers = worker_count(run.workers)
    own = _of_this_session(experiment)
    if own is not None and workers:
        if warn is not None:
            warn(f"{own}: defined in this session, where worker processes cannot import it; run.workers = 0 instead")
        workers = 0
    if workers == 0:
        return nullcontext(InlineWorkers())
    return closing(ProcessExecutor(workers, warn))
