"""The workload of the toolkit comparison, from a row of the FLUTE paper: FedAvg, logistic regression, MNIST."""

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
    """All clients have the same number of samples, so the steps do not depend on which ones are sampled."""

    rounds: int = 100
    clients: int = 1000
    per_round: int = 10
    samples: int = 60
    batch: int = 10
    learning_rate: float = 0.03

    @property
    def steps(self) -> int:
        """Local steps in all rounds together."""
        return self.rounds * self.per_round * -(-self.samples // self.batch)

    @classmethod
    def of_arguments(cls) -> "Flute":
        """Reads rounds and clients from the command line of a measuring process."""
        return cls(rounds=int(sys.argv[1]), clients=int(sys.argv[2]))


class LogisticRegression(nn.Module):
    """784 inputs, 10 classes. cabafl uses it by its dotted name."""

    feature_layer = "out"

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores (batch, 10)."""
        return self.out(x)  # type: ignore[no-any-return]


class Measured(NamedTuple):
    """What a measuring process reports."""

    began: float  # Unix time at the start of the timed rounds
    seconds: float
    steps: int  # local steps counted


def client_tensors(flute: Flute) -> list[tuple[Tensor, Tensor]]:
    """Inputs (60, 784) and labels (60,) of every client."""
    train = vectors(flute.clients * flute.samples).train
    return list(zip(torch.split(train.x, flute.samples), torch.split(train.y, flute.samples), strict=True))


def report(measure: Callable[[Flute], Measured]) -> None:
    """Main function of a measuring process: one torch thread; prints the result as the last line, in JSON."""
    torch.set_num_threads(1)
    logging.disable(logging.INFO)  # the time spent on logging is not part of the comparison
    flute = Flute.of_arguments()
    result = measure(flute)
    assert result.steps == flute.steps, f"{result.steps} local steps, not {flute.steps}"
    sys.stdout.write("\n" + json.dumps(result._asdict()) + "\n")
    sys.stdout.flush()


class Clock:
    """Times the rounds; create it when the warm-up round is over."""

    def __init__(self) -> None:
        self.began = time.time()
        self._started = time.perf_counter()

    def stop(self, steps: int) -> Measured:
        """The measurement up to now."""
        return Measured(self.began, time.perf_counter() - self._started, steps)


def parsed(output: str) -> dict[str, Any]:
    """The result in the output of a measuring process: its last line."""
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result
