"""The best model that was evaluated: what ``run.keep`` keeps beside the last one, or in place of it."""

from cabafl.methods.base import Weights
from cabafl.state import State


class BestModel(State):
    """The first model with the highest accuracy so far."""

    def __init__(self) -> None:
        self.accuracy: float | None = None
        self.version = 0
        self.time = 0.0
        self.weights: Weights | None = None

    def see(self, accuracy: float, version: int, time: float, weights: Weights | None) -> None:
        """Takes in an evaluation. ``weights`` is None for one from before a resume, which was taken in then."""
        if weights is None or not (self.accuracy is None or accuracy > self.accuracy):
            return
        self.accuracy, self.version, self.time, self.weights = accuracy, version, time, weights
