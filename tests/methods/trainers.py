"""Trainers for scripted runs: functions from a job to the model that the device uploads."""

from collections import Counter
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from cabafl.config import TrainingSection
from cabafl.execution.base import TrainJob
from cabafl.learning.task import FlatModel
from cabafl.learning.training import LocalTraining, train
from cabafl.methods.base import Objective, Weights
from tests.scripted import vector

CENTRES = torch.tensor([[1.0, 2.0], [-1.0, 4.0]])  # c_k of the quadratic devices


class Quadratic(nn.Module):
    """The difference of the weights and a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.w - x


def half_square(difference: Tensor, _target: Tensor) -> Tensor:
    return 0.5 * (difference**2).sum(dim=1).mean()


def quadratic_trainer(steps: int, prox: float = 0.0) -> Callable[[TrainJob], Weights]:
    """Real local SGD on F_k(w) = |w - c_k|^2 / 2 with full batches; device 0 has 1 sample, device 1 has 3."""
    model = FlatModel(Quadratic())

    def run(job: TrainJob) -> Weights:
        model.load(job.weights)
        samples = 1 if job.device == 0 else 3
        x = CENTRES[job.device].repeat(samples, 1)
        settings = LocalTraining(
            TrainingSection(epochs=steps, batch_size=10, learning_rate=0.1, momentum=0.5),
            Objective(prox=prox or job.objective.prox),
            loss=half_square,
        )
        train(model.network, x, torch.zeros(samples), settings, seed=job.number)
        return model.save()

    return run


def answers_in_turn(answers: Mapping[tuple[int, int], Weights]) -> Callable[[TrainJob], Weights]:
    """The n-th upload of a device is ``answers[device, n]``, counted from 1."""
    counts: Counter[int] = Counter()

    def run(job: TrainJob) -> Weights:
        counts[job.device] += 1
        return answers[job.device, counts[job.device]]

    return run


def updates_in_turn(updates: list[tuple[float, float]]) -> Callable[[TrainJob], Weights]:
    """The n-th finished job of the run changes the model it received by the n-th update, later ones by nothing."""
    left = list(updates)

    def run(job: TrainJob) -> Weights:
        return job.weights + vector(*(left.pop(0) if left else (0.0, 0.0)))

    return run
