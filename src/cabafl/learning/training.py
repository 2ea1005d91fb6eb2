"""Local SGD: what a device does with the model it receives."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from cabafl.rng import seed64

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LocalTraining:
    """The settings of a job, the method's objective already applied."""

    epochs: int = 5
    batch_size: int = 50
    learning_rate: float = 0.01
    momentum: float = 0.5
    weight_decay: float = 0.0
    prox: float = 0.0
    loss: Loss = F.cross_entropy


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """torch draws (initial weights, dropout) follow from ``seed`` inside, and the outside does not notice.

    torch's layers take no generator of their own, so its default one is lent out and put back.
    """
    gpus = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        yield


def batches(samples: int, batch_size: int, seed: int) -> tuple[Tensor, ...]:
    """One epoch: all samples in a random order that depends on ``seed`` only; the last batch may be short."""
    generator = torch.Generator().manual_seed(seed)
    return torch.split(torch.randperm(samples, generator=generator), batch_size)


def train(network: nn.Module, x: Tensor, y: Tensor, settings: LocalTraining, seed: int) -> None:
    """Trains the network in place on one device's samples, with a fresh optimiser.

    Each epoch visits all samples in a new order. ``prox`` adds prox * (w - w_start) to the gradient, before momentum.
    """
    network.train()
    parameters = [p for p in network.parameters() if p.requires_grad]
    anchor = [p.detach().clone() for p in parameters] if settings.prox else []
    optimiser = torch.optim.SGD(
        parameters,
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    with seeded(seed64(seed, "dropout"), x.device):
        for epoch in range(settings.epochs):
            for batch in batches(len(y), settings.batch_size, seed64(seed, "shuffle", epoch)):
                index = batch.to(x.device)
                optimiser.zero_grad(set_to_none=True)
                loss = settings.loss(network(x[index]), y[index])
                loss.backward()  # type: ignore[no-untyped-call]
                if anchor:
                    _add_proximal(parameters, anchor, settings.prox)
                optimiser.step()


def _add_proximal(parameters: list[nn.Parameter], anchor: list[Tensor], prox: float) -> None:
    for parameter, start in zip(parameters, anchor, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - start, alpha=prox)
