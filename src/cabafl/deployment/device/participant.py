"""What a device does with messages: it keeps its data and models in memory, trains, and computes features.

The server gets the number of samples, trained weights, features, seconds and joules, and nothing else.
"""

import importlib
import logging
import time

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict

from cabafl.assembly import make_data
from cabafl.config import Experiment
from cabafl.data.dataset import Dataset, Split
from cabafl.data.partition import Partition
from cabafl.deployment import wire
from cabafl.deployment.device.energy import Meter, find_meter
from cabafl.deployment.folder.layout import Device
from cabafl.deployment.greeting import Greeting
from cabafl.deployment.messages import FeatureQuery, TrainingJob, TrainingReply
from cabafl.errors import UserError
from cabafl.learning.dp import epsilon, steps_per_epoch
from cabafl.learning.spec import TaskSpec
from cabafl.learning.task import Task, Trained
from cabafl.methods.base import Objective, Weights

SELF = 0  # this device's number in a partition of one
_log = logging.getLogger(__name__)


class Participant:
    """Answers messages. Features use a second model, so that they can be computed during a training."""

    def __init__(self, device: Device) -> None:
        torch.set_num_threads(device.threads)
        self.device = device
        self.meter: Meter = find_meter(device.watts)
        self.greeting: Greeting | None = None
        self._trains: Task | None = None
        self._describes: Task | None = None
        self._steps = 0  # of DP-SGD since the process started
        _log.info("energy: %s", self.meter.source)

    def __call__(self, message: Message, context: Context) -> Message:
        """The reply to a message; raises on any failure."""
        kind = message.metadata.message_type
        if kind == wire.HELLO:
            greeting = Greeting.read(wire.decode_greeting(message.content))
            fresh = greeting != self.greeting
            content = wire.encode_hello(self.join(greeting), fresh)
        elif kind == wire.FEATURES:
            query = wire.decode_feature_query(message.content, self._length())
            content = wire.encode_features(self._features(query))
        elif kind == wire.TRAIN:
            content = self._train(wire.decode_job(message.content, self._length()))
        else:
            raise wire.Malformed(f"message type {kind[:40]!r}")
        return Message(content=content, reply_to=message)

    def join(self, greeting: Greeting) -> int:
        """Loads data and models for an experiment, unless they are loaded already; returns the number of samples."""
        if greeting != self.greeting or self._trains is None:
            self._trains = make_task(self.device, greeting)
            self._describes = make_task(self.device, greeting, self._trains)
            self.greeting = greeting
        samples = len(self._trains.dataset.train)
        _log.info("ready: %s on %d samples", greeting.task.model, samples)
        return samples

    def _length(self) -> int:
        if self.greeting is None:
            raise UserError("a job came before a greeting")
        return self.greeting.weights

    def _train(self, job: TrainingJob) -> RecordDict:
        """Trains, then sleeps until ``pace`` seconds have passed, so that a fast machine can imitate a slow one."""
        task = self._trains
        assert task is not None
        began = time.perf_counter()
        results: list[Trained] = []

        def work() -> None:
            results.append(task.train(job.number, SELF, job.weights, job.objective))
            left = 0.0 if self.device.pace is None else self.device.pace - (time.perf_counter() - began)
            if left > 0:
                time.sleep(left)

        joules = self.meter.joules(work)
        seconds = time.perf_counter() - began
        _log.info("job %d: %.2f s, %.1f J", job.number, seconds, joules)
        self._account(task, job.objective)
        [trained] = results
        return wire.encode_reply(TrainingReply(trained.weights, seconds, joules, trained.loss))

    def _account(self, task: Task, objective: Objective) -> None:
        """Logs the epsilon spent by all trainings so far; it stays on the device."""
        if task.dp is None:
            return
        training, delta = task.spec.training, task.spec.privacy.dp_delta
        samples = len(task.dataset.train)
        self._steps += (objective.epochs or training.epochs) * steps_per_epoch(samples, training.batch_size)
        spent = epsilon(task.dp, samples, training.batch_size, self._steps, delta)
        _log.info("privacy since the start of this process: epsilon %.2f at delta %g", spent, delta)

    def _features(self, query: FeatureQuery) -> Weights:
        assert self._describes is not None
        row: Weights = self._describes.features(query.weights, query.kind, [SELF])[0]
        return row


def make_task(device: Device, greeting: Greeting, like: Task | None = None) -> Task:
    """The device's samples and a model; takes the samples from the task ``like`` if given. Raises `UserError` if the
    device cannot or must not run the model."""
    name = greeting.task.model
    if ":" in name and not device.allow_modules:
        raise UserError(
            f"model = {name!r}: not a built-in model; accepted: the models of `cabafl models`, or any installed one "
            "with allow_modules = true in device.toml"
        )
    dataset = like.dataset if like is not None else _own_samples(device, greeting)
    count = len(dataset.train)
    whole = Partition(np.arange(count), np.array([0, count]))
    task = greeting.task.build(dataset, whole, device.processor, repeatable=False)
    if task.model.layout.size != greeting.weights:
        raise UserError(f"model = {name!r}: {task.model.layout.size} weights here, {greeting.weights} on the server")
    return task


def _own_samples(device: Device, greeting: Greeting) -> Dataset:
    if device.data is not None:
        train = _loaded(device.data, greeting.task)
    else:
        data = greeting.data.model_copy(update={"root": device.root})
        dataset, partition = make_data(Experiment(seed=greeting.task.seed, data=data))
        if device.partition >= len(partition):
            raise UserError(f"partition-id = {device.partition}: accepted: 0 to {len(partition) - 1}")
        train = dataset.train.select(torch.from_numpy(partition.device(device.partition)))
    nothing = train.select(torch.zeros(0, dtype=torch.int64))
    return greeting.task.dataset(train, nothing)


def _loaded(name: str, task: TaskSpec) -> Split:
    """Samples from a user's function that returns ``x, y`` as arrays or tensors."""
    module, colon, function = name.partition(":")
    try:
        if not colon:
            raise ImportError("accepted: package.module:function")
        x, y = getattr(importlib.import_module(module), function)()
        x, y = torch.as_tensor(x), torch.as_tensor(y).to(torch.int64)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"data = {name!r}: cannot be used: {error}") from None
    if tuple(x.shape[1:]) != task.input_shape or y.shape != x.shape[:1]:
        shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
        raise UserError(f"data = {name!r}: returns shapes {shapes}; accepted: n x {task.input_shape} and n labels")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < task.classes:
        raise UserError(f"data = {name!r}: labels from {y.min()} to {y.max()}; accepted: 0 to {task.classes - 1}")
    return Split(x, y)
