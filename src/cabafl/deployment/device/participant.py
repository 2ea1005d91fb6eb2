"""What a device does with messages: it keeps its data and models in memory, trains, and computes features.

The server gets the number of samples, trained weights, features, seconds and joules, and nothing else; and the device's
own terms come first (`terms.py`).
"""

import importlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from cabafl.assembly import make_data
from cabafl.config import DataSection, Experiment
from cabafl.data.dataset import Partition, Split
from cabafl.deployment.device.allowance import Allowance
from cabafl.deployment.device.machine import SYSTEM, Conditions, Meter, apply_limits, find_meter, memory_failures
from cabafl.deployment.device.terms import AgainstTerms
from cabafl.deployment.folder.layout import Device
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.messages import FeatureQuery, FeatureReply, TrainingJob, TrainingReply
from cabafl.errors import UserError
from cabafl.learning.builtin_tasks import find_task
from cabafl.learning.dp import epsilon_of, sampling_rate
from cabafl.learning.spec import TaskSpec
from cabafl.learning.task import Task, TrainingResult
from cabafl.learning.training import Cancelled

SELF = 0  # this device's number in a partition of one
QUESTIONS = "state/questions.json"  # in the device's folder
CANCEL_CHECK_INTERVAL = 0.05  # seconds, while a job only waits
_log = logging.getLogger(__name__)


class Participant:
    """Answers one server. Features use a second model, so that they can be computed during a training.

    Raises `UserError` if a condition, a limit or the memory of earlier questions cannot be used on this machine.
    """

    def __init__(self, device: Device, system: Path = SYSTEM, clock: Callable[[], float] = time.time) -> None:
        apply_limits(device.limits)
        torch.set_num_threads(device.threads)
        self.device = device
        self.meter: Meter = find_meter(device.watts, system, device.sensor)
        self.greeting: Greeting | None = None
        self._conditions = Conditions(device.when, system, clock)
        self._allowance = Allowance(device.folder / QUESTIONS, device.terms.feature_questions_per_day, clock)
        self._trains: Task | None = None
        self._describes: Task | None = None
        self._samples: tuple[object, Split] | None = None  # with the settings they follow from
        self._steps: Counter[tuple[float, float]] = Counter()  # of DP-SGD since the process started
        self._idle_since = time.perf_counter()  # the end of its last job, or the moment it joined the run
        _log.info("energy: %s", self.meter.source)

    def join(self, greeting: Greeting) -> int:
        """Loads data and models for an experiment, unless they are loaded already; returns the number of samples.

        Raises `UserError` if the device cannot take part, `AgainstTerms` if it must not.
        """
        if greeting != self.greeting or self._trains is None:
            self.leave()
            self._prepare(greeting)
            self.greeting = greeting
        assert self._trains is not None
        self._idle_since = time.perf_counter()
        return len(self._trains.dataset.train)

    def _prepare(self, greeting: Greeting) -> None:
        terms, privacy = self.device.terms, greeting.task.privacy
        terms.check(privacy)
        _check_code(self.device, greeting.task)
        spec = greeting.task.model_copy(update={"privacy": terms.applied(privacy)})
        try:
            with memory_failures(self.device.limits):
                own = self._load_samples(greeting)
                tasks = [_make_task(spec, own, self.device.processor, greeting.weights) for _ in range(2)]
        except MemoryError as error:
            raise UserError(f"model = {spec.model!r}: {error} with this device's samples") from None
        self._trains, self._describes = tasks
        _log.info("ready: %s on %d samples", spec.model, len(own))
        _log.info("terms: %s", "; ".join(terms.decisions(privacy)))

    def leave(self) -> None:
        """Drops models and greeting: the run is over. The samples stay, in case the next run uses the same."""
        self.greeting = self._trains = self._describes = None

    def ready(self) -> str | None:
        """Why the device must not begin a job now, without anything private; None: it may."""
        return self._conditions.unmet()

    def train(self, job: TrainingJob, cancelled: Callable[[], bool]) -> TrainingReply | None:
        """Trains, then waits until ``pace`` seconds have passed, so that a fast machine can imitate a slow one. Returns
        None soon after ``cancelled`` says so. The joules include those of the time the device was idle before.

        Raises `AgainstTerms` if a condition does not hold. A job that has begun is finished even if one ceases to.
        """
        task = _joined(self._trains)
        if (reason := self.ready()) is not None:
            raise AgainstTerms(f"not now: {reason}")
        began = time.perf_counter()
        steps = _Steps(cancelled)
        results: list[TrainingResult] = []

        def work() -> None:
            results.append(task.train(job.number, SELF, job.weights, job.objective, steps))
            self._keep_pace(began, cancelled)

        try:
            with memory_failures(self.device.limits):
                joules = self.meter.joules(work)
        except Cancelled:
            _log.info("job %d: cancelled after %.2f s", job.number, time.perf_counter() - began)
            return None
        finally:
            self._account(task, steps.taken)
        joules += (began - self._idle_since) * self.device.idle_watts
        self._idle_since = time.perf_counter()
        seconds = self._idle_since - began
        _log.info("job %d: %.2f s, %.1f J", job.number, seconds, joules)
        [trained] = results
        return TrainingReply(trained.weights, seconds, joules, trained.loss)

    def _keep_pace(self, began: float, cancelled: Callable[[], bool]) -> None:
        end = began + (self.device.pace or 0.0)
        while (left := end - time.perf_counter()) > 0:
            if cancelled():
                raise Cancelled
            time.sleep(min(left, CANCEL_CHECK_INTERVAL))

    def _account(self, task: Task, steps: int) -> None:
        """Logs the epsilon spent by all trainings so far; it stays on the device. Steps of a job that was cancelled or
        failed count too."""
        if task.dp is None or not steps:
            return
        rate = sampling_rate(len(task.dataset.train), task.spec.training.batch_size)
        self._steps[task.dp.noise, rate] += steps
        delta = task.spec.privacy.dp_delta
        spent = epsilon_of(self._steps, delta)
        _log.info("privacy since the start of this process: epsilon %.2f at delta %g", spent, delta)

    def features(self, query: FeatureQuery) -> FeatureReply:
        """Answers a feature question; raises `AgainstTerms` if the device's terms forbid it."""
        task = _joined(self._describes)
        self.device.terms.check_question(query.kind, task.spec.privacy)
        self._allowance.spend()
        with memory_failures(self.device.limits):
            return FeatureReply(task.features(query.weights, query.kind, [SELF])[0])

    def _load_samples(self, greeting: Greeting) -> Split:
        """The samples of the experiment before, if this one's follow from the same settings."""
        settings = _sample_settings(self.device, greeting)
        if self._samples is None or self._samples[0] != settings:
            self._samples = None  # before the others are loaded: memory may not suffice for both
            self._samples = settings, _own_samples(self.device, greeting)
        samples = self._samples[1]
        if self.device.data is not None:
            _check_samples(samples, self.device.data, greeting.task)
        return samples


class _Steps:
    """Counts the steps of a training, each of which it is asked about before (see `Stop`)."""

    def __init__(self, cancelled: Callable[[], bool]) -> None:
        self.taken = 0
        self._cancelled = cancelled

    def __call__(self) -> bool:
        if self._cancelled():
            return True
        self.taken += 1
        return False


def _check_code(device: Device, spec: TaskSpec) -> None:
    """Raises `UserError` if the device must not run what the experiment asks for: no code the server names."""
    for what, name in spec.code():
        if not device.allow_modules:
            raise UserError(
                f"{what} = {name!r}: not a built-in {what}; accepted: the built-in ones, or any installed one "
                "with allow_modules = true in device.toml"
            )


def _make_task(spec: TaskSpec, samples: Split, processor: str, weights: int) -> Task:
    """The device's samples and a model of ``weights`` numbers."""
    dataset = spec.dataset(samples, samples.select(torch.zeros(0, dtype=torch.int64)))
    whole = Partition(np.arange(len(samples)), np.array([0, len(samples)]))
    task = spec.build(dataset, whole, processor, repeatable=False)
    if task.model.layout.size != weights:
        raise UserError(f"model = {spec.model!r}: {task.model.layout.size} weights here, {weights} on the server")
    return task


def _joined(task: Task | None) -> Task:
    if task is None:
        raise UserError("a job came before a greeting")
    return task


def _sample_settings(device: Device, greeting: Greeting) -> tuple[str] | tuple[int, str, DataSection]:
    """Everything the device's samples follow from; the server's folder and test samples are not part of it."""
    if device.data is not None:
        return (device.data,)
    data = greeting.data.model_copy(update={"root": None, "test_limit": None})
    return greeting.task.seed, greeting.task.task.name, data


def _own_samples(device: Device, greeting: Greeting) -> Split:
    if device.data is not None:
        return _loaded(device.data)
    data = greeting.data.model_copy(update={"root": device.root})
    dataset, partition = make_data(Experiment(seed=greeting.task.seed, data=data, task=greeting.task.task))
    if device.partition >= len(partition):
        raise UserError(f"partition-id = {device.partition}: accepted: 0 to {len(partition) - 1}")
    return dataset.train.select(torch.from_numpy(partition.device(device.partition)))


def _loaded(name: str) -> Split:
    """Samples from a user's function that returns ``x, y`` as arrays or tensors."""
    module, colon, function = name.partition(":")
    try:
        if not colon:
            raise ImportError("accepted: package.module:function")
        x, y = getattr(importlib.import_module(module), function)()
        targets = torch.as_tensor(y)
        return Split(torch.as_tensor(x), targets.to(torch.float32 if targets.is_floating_point() else torch.int64))
    except (ImportError, AttributeError, OSError, TypeError, ValueError) as error:
        raise UserError(f"data = {name!r}: cannot be used: {error}") from None


def _check_samples(samples: Split, name: str, task: TaskSpec) -> None:
    x, y = samples.x, samples.y
    if tuple(x.shape[1:]) != task.input_shape or y.shape[:1] != x.shape[:1]:
        shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
        raise UserError(f"data = {name!r}: returns shapes {shapes}; accepted: n x {task.input_shape} and n labels")
    learning = find_task(task.task)
    try:
        learning.check(y)
    except ValueError as error:
        raise UserError(f"data = {name!r}: {error}") from None
    if len(y) and learning.outputs(task.classes, y) != task.classes:
        raise UserError(f"data = {name!r}: targets of shape {tuple(y.shape)}; accepted: {task.classes} per sample")
    if len(y) and learning.targets in ("class", "tokens") and not 0 <= int(y.min()) <= int(y.max()) < task.classes:
        raise UserError(f"data = {name!r}: labels from {y.min()} to {y.max()}; accepted: 0 to {task.classes - 1}")
