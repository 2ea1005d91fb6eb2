"""A multilayer perceptron for vectors, windows and images."""

import math
from collections import OrderedDict

from torch import nn


def mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Flattens the input; two hidden layers of 200 with ReLU. Feature: ``relu2``, the second hidden layer."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            fc1=nn.Linear(math.prod(input_shape), 200),
            relu1=nn.ReLU(),
            fc2=nn.Linear(200, 200),
            relu2=nn.ReLU(),
            out=nn.Linear(200, classes),
        )
    )
