"""What a device does with messages: it keeps its data and models in memory, trains, and computes features.

The server gets the number of samples, trained weights, features, seconds, joules and numbers of steps and epochs; if a
job asks for it, the training loss; and nothing else. The device's own terms come first (`terms.py`).
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from cabafl.config import Experiment
from cabafl.data.dataset import Partition, Split
from cabafl.data.loader import Loader, read_own
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
from cabafl.learning.task import Control, Task, TrainingResult
from cabafl.learning.training import Cancelled, passes_of
from cabafl.names import is_function
from cabafl.samples import hub_options, make_data

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

    def train(
        self, job: TrainingJob, cancelled: Callable[[], bool], finishing: Callable[[], bool] = lambda: False
    ) -> TrainingReply | None:
        """Trains, and waits after each epoch until its share of ``pace`` seconds has passed, so that a fast machine can
        imitate a slow one. Returns None soon after ``cancelled`` says so, and ends after the running epoch if
        ``finishing`` says so. The joules include those of the time the device was idle before.

        Raises `AgainstTerms` if a condition does not hold. A job that has begun is finished even if one ceases to.
        """
        task = _joined(self._trains)
        if (reason := self.ready()) is not None:
            raise AgainstTerms(f"not now: {reason}")
        began = time.perf_counter()
        steps, whole = _Steps(cancelled), task.spec.training.epochs
        results: list[TrainingResult] = []

        def enough(epochs: int) -> bool:
            self._keep_pace(began, epochs / whole, cancelled)
            return finishing()

        def work() -> None:
            control = Control(steps, enough)
            results.append(task.train(job.number, SELF, job.weights, job.objective, job.correction, control))
            self._keep_pace(began, _passes(task, results[0]) / whole, cancelled)

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
        weights, loss, square_loss, done, epochs = trained
        return TrainingReply(weights, seconds, joules, loss, square_loss, done, epochs)

    def _keep_pace(self, began: float, share: float, cancelled: Callable[[], bool]) -> None:
        end = began + share * (self.device.pace or 0.0)
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
        loader = _loader(self.device, greeting)
        settings = _sample_settings(self.device, greeting)
        if self._samples is None or self._samples[0] not in (settings, settings[:2]):
            self._samples = None  # before the others are loaded: memory may not suffice for both
            samples, own = _own_samples(self.device, greeting, loader)
            self._samples = settings[:2] if own and self.device.data else settings, samples
        if loader is not None:
            _check_samples(self._samples[1], loader, greeting.task)
        return self._samples[1]


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


def _passes(task: Task, trained: TrainingResult) -> float:
    """Passes over the samples that a job has made: its epochs, or a part of one if ``training.max_steps`` ended it."""
    size = np.array([len(task.dataset.train)])
    return min(trained.epochs, passes_of(trained.steps, task.spec.training.batch_size, size).item())


def _check_code(device: Device, spec: TaskSpec) -> None:
    """Raises `UserError` if the device must not run what the experiment asks for: no code the server names."""
    for key, name in spec.code().items():
        if not device.allow_modules:
            raise UserError(
                f"{key} = {name!r}: not built in; accepted: what is built in, or anything installed, "
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


def _loader(device: Device, greeting: Greeting) -> Loader | None:
    """The owner's function, or the one that the experiment names, if the owner allows that."""
    if device.data is not None:
        return Loader.find(device.data, "data")
    name = greeting.data.dataset
    if not is_function(name):
        return None
    if not device.allow_modules:
        raise UserError(
            f"data.dataset = {name!r}: not a built-in data set; accepted: `data` in device.toml, or any installed "
            "function with allow_modules = true there"
        )
    return Loader.find(name)


def _sample_settings(device: Device, greeting: Greeting) -> tuple[object, ...]:
    """Everything the device's samples follow from; the server's folder and test samples are not part of it."""
    section = greeting.data.model_copy(update={"root": None, "test_limit": None})
    return device.data, greeting.task.class_names, greeting.task.seed, greeting.task.task.name, section


def _own_samples(device: Device, greeting: Greeting, loader: Loader | None) -> tuple[Split, bool]:
    """The samples, and whether they are the device's own, whatever the experiment, and not a part of a data set."""
    dataset = None
    if loader is not None:
        options = hub_options(greeting.data, greeting.task.task)
        found = read_own(loader, device.partition, greeting.task.class_names, options)
        if isinstance(found, Split):
            return found, True
        dataset = found
    data = greeting.data.model_copy(update={"root": device.root})
    dataset, partition = make_data(Experiment(seed=greeting.task.seed, data=data, task=greeting.task.task), dataset)
    if device.partition >= len(partition):
        raise UserError(f"partition-id = {device.partition}: accepted: 0 to {len(partition) - 1}")
    return dataset.train.select(torch.from_numpy(partition.device(device.partition))), False


def _check_samples(samples: Split, loader: Loader, task: TaskSpec) -> None:
    x, y = samples.x, samples.y
    if tuple(x.shape[1:]) != task.input_shape:
        raise loader.error(f"x has shape {tuple(x.shape)}; accepted: n x {task.input_shape}")
    if task.pixels is not None and (x.dtype == torch.uint8) != (task.pixels == "bytes"):
        raise loader.error(f"x is {x.dtype}; accepted: pixels as {task.pixels}, as the server's test samples are")
    if task.kind == "text" and len(x) and (x.is_floating_point() or not 0 <= x.min() <= x.max() < task.classes):
        raise loader.error(f"x has symbols from {x.min()} to {x.max()}; accepted: from 0 to {task.classes - 1}")
    learning = find_task(task.task)
    try:
        learning.check(y)
    except ValueError as error:
        raise loader.error(str(error)) from None
    if len(y) and learning.outputs(task.classes, y) != task.classes:
        raise loader.error(f"targets of shape {tuple(y.shape)}; accepted: {task.classes} per sample")
    if len(y) and learning.targets in ("class", "tokens") and not 0 <= int(y.min()) <= int(y.max()) < task.classes:
        raise loader.error(f"labels from {y.min()} to {y.max()}; accepted: class numbers from 0 to {task.classes - 1}")
