"""The average of the models that a method publishes, beside which its training goes on unchanged.

The models a method publishes jump: the last few uploads decide what a model knows. Their average does not. With w_t the
t-th published model and A_1 = w_1:

    A_t = (1 - a_t) A_(t-1) + a_t w_t
    polynomial:   a_t = min(1, (g + 1) / (t + g))     spans the last 1 / (g + 1) of all versions, whatever their number
    exponential:  a_t = 1 - decay                     spans the last 1 / (1 - decay) versions

Before the first version, the average is the initial model.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from cabafl.methods.base import Floats, Weights
from cabafl.state import State, frozen

AverageKind = Literal["polynomial", "exponential"]


@dataclass(frozen=True)
class AverageRule:
    """How published models are averaged; ``power`` is g of the polynomial average."""

    kind: AverageKind
    power: float = 8.0
    decay: float = 0.99

    def share(self, count: int) -> float:
        """a_t, the weight of the ``count``-th model, counted from 1."""
        if count == 1:
            return 1.0
        if self.kind == "polynomial":
            return min(1.0, (self.power + 1.0) / (count + self.power))
        return 1.0 - self.decay


class RunningAverage(State):
    """The average so far, in float64: small shares of many models would be lost in float32."""

    def __init__(self, initial: Weights) -> None:
        self.count = 0
        self.value: Floats = frozen(initial.astype(np.float64))

    def add(self, weights: Weights, rule: AverageRule) -> None:
        """Takes in the next published model."""
        self.count += 1
        step = weights - self.value
        step *= rule.share(self.count)
        step += self.value
        self.value = frozen(step)

    def model(self) -> Weights:
        """The averaged model."""
        return self.value.astype(np.float32)
