"""The best model that was evaluated: what ``run.keep`` keeps beside the last one, or in place of it."""

import math

from cabafl.methods.base import Weights
from cabafl.state import State


class BestModel(State):
    """The first model with the best value of the task's metric so far."""

    def __init__(self, more_is_better: bool) -> None:
        self.more_is_better = more_is_better
        self.value: float | None = None
        self.version = 0
        self.time = 0.0
        self.weights: Weights | None = None

    def see(self, value: float, version: int, time: float, weights: Weights | None) -> None:
        """Takes in an evaluation. ``weights`` is None for one that was taken in before."""
        if weights is None or math.isnan(value):
            return
        if self.value is None or (value > self.value if self.more_is_better else value < self.value):
            self.value, self.version, self.time, self.weights = value, version, time, weights
