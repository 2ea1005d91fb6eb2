"""The workload all toolkits are measured on, after a row of the FLUTE paper: FedAvg, logistic regression, MNIST."""

import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cabafl.bench.workload import vectors

FEATURES, CLASSES = 784, 10


@dataclass(frozen=True)
class Flute:
    """All clients have the same number of samples, so that the steps do not depend on who is drawn."""

    rounds: int = 100
    clients: int = 1000
    per_round: int = 10
    samples: int = 60
    batch: int = 10
    learning_rate: float = 0.03

    @property
    def steps(self) -> int:
        """Local steps of all rounds."""
        return self.rounds * self.per_round * -(-self.samples // self.batch)

    @classmethod
    def of_arguments(cls) -> "Flute":
        """From the command line of a measuring process: rounds and clients."""
        return cls(rounds=int(sys.argv[1]), clients=int(sys.argv[2]))


class LogisticRegression(nn.Module):
    """784 inputs, 10 classes; also a model of cabafl by its dotted name."""

    feature_layer = "out"

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        return self.out(x)  # type: ignore[no-any-return]


class Measured(NamedTuple):
    """What a measuring process reports: when its rounds began (wall clock), how long they took, what they did."""

    began: float
    seconds: float
    steps: int


def client_tensors(flute: Flute) -> list[tuple[Tensor, Tensor]]:
    """Every client's inputs and labels."""
    train = vectors(flute.clients * flute.samples).train
    return list(zip(torch.split(train.x, flute.samples), torch.split(train.y, flute.samples), strict=True))


def report(measure: Callable[[Flute], Measured]) -> None:
    """Main function of a measuring process: one torch thread, the result as the last line of output."""
    torch.set_num_threads(1)
    logging.disable(logging.INFO)  # nobody is charged for telling about every round
    flute = Flute.of_arguments()
    result = measure(flute)
    assert result.steps == flute.steps, f"{result.steps} local steps, not {flute.steps}"
    sys.stdout.write("\n" + json.dumps(result._asdict()) + "\n")
    sys.stdout.flush()


class Clock:
    """Started once the first round, a warm-up, is over."""

    def __init__(self) -> None:
        self.began = time.time()
        self._started = time.perf_counter()

    def stop(self, steps: int) -> Measured:
        """The measurement."""
        return Measured(self.began, time.perf_counter() - self._started, steps)


def parsed(output: str) -> dict[str, Any]:
    """The last line of a measuring process."""
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result
