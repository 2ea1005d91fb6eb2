"""Bare torch training loops, the baseline of the simulator benchmark."""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from cabafl.models.cnn import cifar_cnn

Client = tuple[Tensor, Tensor]


def usual_cnn() -> nn.Module:
    """The paper's CNN for 3x32x32 images as it is usually written: ReLU, then pooling."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 6, 5),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(400, 120),
            relu3=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
            out=nn.Linear(84, 10),
        )
    )


def tuned_cnn() -> nn.Module:
    """The same network with pooling before ReLU and channels-last memory."""
    network = cifar_cnn((3, 32, 32), 10)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def train(network: nn.Module, clients: Sequence[Client], jobs: int, epochs: int, batch: int) -> int:
    """Runs ``jobs`` local trainings from the same weights, each with a new optimiser; returns the number of steps."""
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    steps = 0
    network.train()
    for job in range(jobs):
        x, y = clients[job % len(clients)]
        network.load_state_dict(start)
        optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.5)
        for _ in range(epochs):
            order = torch.randperm(len(y))
            for first in range(0, len(y), batch):
                index = order[first : first + batch]
                optimiser.zero_grad()
                loss = F.cross_entropy(network(x[index]), y[index])
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                steps += 1
    return steps
