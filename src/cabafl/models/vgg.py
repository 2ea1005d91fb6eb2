"""VGG-16 with batch norm for 32x32 images."""

from collections import OrderedDict

from torch import nn

_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(channels: int, classes: int, padding: int = 0) -> nn.Module:
    """13 convolutions and the head 512-4096-4096. Feature: ``flatten``, 512 values after the convolutions."""
    layers: list[nn.Module] = []
    for stage in _STAGES:
        for width in stage:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        OrderedDict(
            pad=nn.ZeroPad2d(padding),
            convolutions=nn.Sequential(*layers),
            flatten=nn.Flatten(),
            fc1=nn.Linear(512, 4096),
            relu1=nn.ReLU(),
            dropout1=nn.Dropout(0.5),
            fc2=nn.Linear(4096, 4096),
            relu2=nn.ReLU(),
            dropout2=nn.Dropout(0.5),
            out=nn.Linear(4096, classes),
        )
    )
