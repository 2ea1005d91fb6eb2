"""About how long the runs take here: a few training steps per network are timed, and the jobs are counted."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cabafl import methods
from cabafl.config import Experiment
from cabafl.data.dataset import Dataset, Kind, Partition, Split
from cabafl.learning.spec import TaskSpec
from cabafl.methods.base import Objective
from cabafl.paper.artefact import DataFacts
from cabafl.paper.definitions import settings
from cabafl.paper.identity import identity
from cabafl.tiers import CONFIGS, TIERS

STARTUP = 2.5  # seconds of a run before its first job: imports, data, initial weights
# Jobs of a method in a given time, as a share of those of an asynchronous one, which never waits (CIFAR-10, K = 10).
PACE = {"synchronous": 0.5, "semi-asynchronous": 0.8, "asynchronous": 1.0}
SYMBOLS = 80  # of text
FEW = 10  # samples of the first measurement
WORTH_MORE = 0.5  # seconds: if two batches take less, they are measured, too


@dataclass(frozen=True)
class Speed:
    """Seconds of one core per sample: one pass of training, and one forward pass."""

    training: float
    forward: float


class Stopwatch:
    """Measures each network once."""

    def __init__(self) -> None:
        self._known: dict[str, Speed] = {}

    def seconds(self, experiments: Sequence[Experiment], facts: Sequence[DataFacts]) -> float:
        """About the processor time of these runs together."""
        return sum(self._seconds(one, about) for one, about in zip(experiments, facts, strict=True))

    def _seconds(self, experiment: Experiment, facts: DataFacts) -> float:
        work = jobs_of(experiment, facts)
        speed = self._speed(experiment, facts)
        samples = work.jobs * work.samples * experiment.training.epochs
        tests = min(facts.tests, experiment.data.test_limit or facts.tests)
        evaluations = (experiment.run.virtual_time or 0.0) / experiment.run.evaluate_every
        forward = evaluations * tests + work.collected
        return STARTUP + samples * speed.training + forward * speed.forward

    def _speed(self, experiment: Experiment, facts: DataFacts) -> Speed:
        model = experiment.model.model_copy(update={"feature_layer": None})
        key = f"{model!r} {facts.shape} {facts.classes} {experiment.training.batch_size}"
        if key not in self._known:
            self._known[key] = _measured(experiment.model_copy(update={"model": model}), facts)
        return self._known[key]


@dataclass(frozen=True)
class Work:
    """The jobs of a run, the samples of each, and the samples passed forward in feature collections."""

    jobs: float
    samples: float
    collected: float


def jobs_of(experiment: Experiment, facts: DataFacts) -> Work:
    """Counts jobs by the mean time of one."""
    known = identity(experiment)
    devices = known["data.devices"] if isinstance(known["data.devices"], int) else facts.devices or 100
    size = min(facts.size, experiment.data.train_limit or facts.size)
    cls = methods.find(experiment.method.name)
    slots = experiment.slots(devices)
    jobs = slots * (experiment.run.virtual_time or 0.0) / _job_seconds(experiment, size / devices)
    jobs *= PACE.get(cls.kind, 1.0)
    parameters = experiment.method.parameters
    collects = cls(cls.Parameters(**parameters)).needs().features is not None
    times = 1 + jobs / (parameters.get("k", 10) * parameters.get("m", 50)) if collects else 0.0
    return Work(jobs, size / devices, times * size)


def _job_seconds(experiment: Experiment, samples: float) -> float:
    fleet = experiment.fleet
    if fleet.tiers is None:
        return max(1.0, fleet.seconds_per_sample * samples) + fleet.link_seconds + fleet.extra_latency
    counts = fleet.tiers
    if isinstance(counts, str):
        counts = dict(zip(TIERS, CONFIGS[counts], strict=True))
    total = sum(TIERS[name][0] * count for name, count in counts.items())
    return total / sum(counts.values()) + fleet.extra_latency


def _measured(experiment: Experiment, facts: DataFacts) -> Speed:
    """Times processor seconds, so that other load on the machine does not count. Slow networks get fewer samples."""
    torch.set_num_threads(1)
    batch = experiment.training.batch_size
    spread = np.array([0, FEW, 2 * FEW, 2 * FEW + 2 * batch])  # three devices: to warm up, a few samples, two batches
    kind: Kind = "text" if facts.text else "image" if len(facts.shape) == 3 else "vector"
    x = torch.rand((int(spread[-1]), *facts.shape), generator=torch.Generator().manual_seed(1))
    if kind == "text":
        x = (x * SYMBOLS).to(torch.uint8)
    train = Split(x, torch.arange(len(x)) % facts.classes)
    dataset = Dataset("estimate", kind, train, train.select(torch.arange(2 * FEW)), facts.classes)
    task = TaskSpec.of(experiment, dataset).build(dataset, Partition(np.arange(len(x)), spread))
    weights, once = task.model.save(), Objective(epochs=1)

    def per_sample(device: int) -> float:
        return _processor_seconds(lambda: task.train(0, device, weights, once)) / task.partition.sizes.item(device)

    per_sample(0)
    training = per_sample(1)
    if training * 2 * batch < WORTH_MORE:
        training = per_sample(2)
    return Speed(training, _processor_seconds(lambda: task.evaluate(weights, 0)) / (2 * FEW))


def _processor_seconds(function: Callable[[], object]) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started


def facts_of(experiment: Experiment, setting: str) -> DataFacts:
    """Size and shape of the data of an experiment; of the user's own .npz file: those of the paper's data set."""
    known = settings().data
    return known.get(experiment.data.dataset) or known[setting.split("-", 1)[0]]


def in_words(seconds: float) -> str:
    """``3 min``, ``2.5 h``, ``12 days``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"
