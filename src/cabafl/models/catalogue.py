"""Descriptions of the networks. Does not import torch: `cabafl models` stays quick."""

from typing import NamedTuple


class NetworkInfo(NamedTuple):
    """One line of `cabafl models`."""

    takes: str  # a data kind (image, text), or "any numbers": images and vectors
    about: str
    feature: str  # default feature layer: the module whose output is the feature


NETWORKS: dict[str, NetworkInfo] = {
    "cnn": NetworkInfo(
        "image", "two 5x5 convolutions; 6-16-120-84 for 32x32 images, 16-32-256 for 28x28", "flatten or relu3"
    ),
    "resnet18": NetworkInfo("image", "ResNet-18, 3x3 stem, batch norm", "block4"),
    "vgg16": NetworkInfo("image", "VGG-16, batch norm, 4096-4096 head with dropout", "flatten"),
    "lstm": NetworkInfo("text", "embedding 8, two LSTM layers of 256, dropout", "lstm"),
    "mlp": NetworkInfo("any numbers", "two hidden layers of 200", "relu2"),
}
