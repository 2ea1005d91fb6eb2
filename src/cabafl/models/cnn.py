"""The two small convolutional networks of the paper.

Pooling comes before ReLU. The two commute (same output, same gradient), and ReLU then processes a quarter of the
values.
"""

from collections import OrderedDict

from torch import nn


def _after_two_convolutions(side: int) -> int:
    return ((side - 4) // 2 - 4) // 2


def cifar_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 5x5 convolutions (6, 16 channels), then 120-84 units. Feature: ``flatten``, 400 values for 32x32 images."""
    channels, height, width = input_shape
    flat = 16 * _after_two_convolutions(height) * _after_two_convolutions(width)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 6, 5),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(6, 16, 5),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            fc1=nn.Linear(flat, 120),
            relu3=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
            out=nn.Linear(84, classes),
        )
    )


def digit_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """For 28x28 images: two 5x5 convolutions (16, 32 channels), then 256 units. Feature: ``relu3``, 256 values."""
    channels, height, width = input_shape
    flat = 32 * _after_two_convolutions(height) * _after_two_convolutions(width)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 16, 5),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(16, 32, 5),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            fc1=nn.Linear(flat, 256),
            relu3=nn.ReLU(),
            out=nn.Linear(256, classes),
        )
    )
