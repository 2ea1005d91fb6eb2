"""VGG-16 with batch norm for 32x32 images."""

from collections import OrderedDict

from torch import nn

from cabafl.models.width import scaled

_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(channels: int, classes: int, padding: int = 0, width: float = 1.0) -> nn.Module:
    """13 convolutions and the head 512-4096-4096, all times ``width``. Feature: ``flatten``, 512 values (times
    ``width``) after the convolutions."""
    layers: list[nn.Module] = []
    for stage in _STAGES:
        for outside in (scaled(full, width) for full in stage):
            layers += [nn.Conv2d(channels, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)]
            channels = outside
        layers.append(nn.MaxPool2d(2))
    units = scaled(4096, width)
    return nn.Sequential(
        OrderedDict(
            pad=nn.ZeroPad2d(padding),
            convolutions=nn.Sequential(*layers),
            flatten=nn.Flatten(),
            fc1=nn.Linear(channels, units),
            relu1=nn.ReLU(),
            dropout1=nn.Dropout(0.5),
            fc2=nn.Linear(units, units),
            relu2=nn.ReLU(),
            dropout2=nn.Dropout(0.5),
            out=nn.Linear(units, classes),
        )
    )
