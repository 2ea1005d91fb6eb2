"""A network of your own: called with the shape of one sample and the number of classes."""

import math

from torch import Tensor, nn


class TwoLayers(nn.Module):
    """One hidden layer for vectors and images."""

    feature_layer = "hidden"  # the module whose output CaBaFL collects, unless model.feature_layer names another

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), 64), nn.ReLU())
        self.out = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.out(self.hidden(x))
        return scores
