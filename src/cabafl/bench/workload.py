"""Generated data sets, and the parts of an experiment on them."""

import numpy as np
import torch

from cabafl.assembly import SimulationParts, make_faults, make_fleet, make_task
from cabafl.checked import make_method
from cabafl.config import Experiment, load_experiment
from cabafl.data.dataset import Dataset, Partition, Split
from cabafl.rng import rng


def images(samples: int, test_samples: int = 10) -> Dataset:
    """Random uint8 images of shape (3, 32, 32), as in CIFAR-10."""
    draw = rng(1, "bench pictures")

    def split(count: int) -> Split:
        x = draw.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        return Split(torch.from_numpy(x), torch.from_numpy(draw.integers(0, 10, count)))

    return Dataset("noise", "image", split(samples), split(test_samples), 10, (0.5,) * 3, (0.25,) * 3)


def vectors(samples: int, width: int = 784, test_samples: int = 10) -> Dataset:
    """Random float32 vectors between 0 and 1; 784 numbers, as in a flattened MNIST digit."""
    draw = rng(1, "bench vectors")

    def split(count: int) -> Split:
        x = draw.random((count, width), dtype=np.float32)
        return Split(torch.from_numpy(x), torch.from_numpy(draw.integers(0, 10, count)))

    return Dataset("noise", "vector", split(samples), split(test_samples), 10)


def even_parts(dataset: Dataset, devices: int, settings: list[str]) -> SimulationParts:
    """The parts of an experiment on ``dataset``, with the same number of samples on every device."""
    experiment: Experiment = load_experiment(None, settings)
    samples = len(dataset.train)
    offsets = np.arange(devices + 1, dtype=np.int64) * (samples // devices)
    partition = Partition(np.arange(samples, dtype=np.int64), offsets)
    method = make_method(experiment)
    task = make_task(experiment, dataset, partition)
    fleet = make_fleet(experiment, partition.sizes, task.model.layout.bytes)
    faults = make_faults(experiment, devices)
    return SimulationParts(experiment, method, task, experiment.slots(devices), fleet, faults)
