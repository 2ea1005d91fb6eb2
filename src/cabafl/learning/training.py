"""Local SGD: what a device does with the model it receives."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from cabafl.learning.dp import DpSgd, drawn, make_private, per_sample_gradients, steps_per_epoch
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
    report_loss: bool = False
    loss: Loss = F.cross_entropy
    dp: DpSgd | None = None


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """torch draws (initial weights, dropout) follow from ``seed`` inside, and the outside does not notice.

    torch's layers take no generator of their own, so its default one is lent out and put back.
    """
    if device is not None and device.type == "cuda":
        with torch.random.fork_rng(devices=[device]):
            torch.manual_seed(seed)
            yield
        return
    # torch.manual_seed would note a stack trace for every GPU back end it might have to seed later, in every job.
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)


def batches(samples: int, batch_size: int, seed: int) -> tuple[Tensor, ...]:
    """One epoch: all samples in a random order that depends on ``seed`` only; the last batch may be short."""
    generator = torch.Generator().manual_seed(seed)
    return torch.split(torch.randperm(samples, generator=generator), batch_size)


def train(
    network: nn.Module, x: Tensor, y: Tensor, settings: LocalTraining, seed: int, dp_seed: int | None = None
) -> float | None:
    """Trains the network in place on one device's samples, with a fresh optimiser. With ``report_loss``, the mean loss
    over the samples of the last epoch.

    Each epoch visits all samples in a new order. ``prox`` adds prox * (w - w_start) to the gradient, before momentum.
    """
    if settings.dp is not None:
        _train_privately(network, x, y, settings, settings.dp, seed, seed if dp_seed is None else dp_seed)
        return None
    network.train()
    parameters = [p for p in network.parameters() if p.requires_grad]
    anchor = [p.detach().clone() for p in parameters] if settings.prox else []
    optimiser = _Sgd(parameters, settings)
    total = 0.0
    with seeded(seed64(seed, "dropout"), x.device):
        for epoch in range(settings.epochs):
            for batch in batches(len(y), settings.batch_size, seed64(seed, "shuffle", epoch)):
                index = batch.to(x.device)
                loss = settings.loss(network(x[index]), y[index])
                loss.backward()  # type: ignore[no-untyped-call]
                if anchor:
                    _add_proximal(parameters, anchor, settings.prox)
                optimiser.step()
                if settings.report_loss and epoch == settings.epochs - 1:
                    total += loss.item() * len(batch)
    return total / len(y) if settings.report_loss else None


def _train_privately(
    network: nn.Module, x: Tensor, y: Tensor, settings: LocalTraining, dp: DpSgd, seed: int, dp_seed: int
) -> None:
    """DP-SGD: as many steps, each on a random share of the samples. A loss would tell about the samples: there is none.

    The pull towards the start (``prox``) and momentum come after the noise and cost no privacy.
    """
    network.train()
    parameters = [p for p in network.parameters() if p.requires_grad]
    anchor = [p.detach().clone() for p in parameters] if settings.prox else []
    optimiser = _Sgd(parameters, settings)
    generator = torch.Generator().manual_seed(seed64(dp_seed, "dp"))
    steps = settings.epochs * steps_per_epoch(len(y), settings.batch_size)
    with seeded(seed64(seed, "dropout"), x.device), per_sample_gradients(network):
        for _ in range(steps):
            index = drawn(len(y), settings.batch_size, generator).to(x.device)
            if len(index):
                settings.loss(network(x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
            make_private(parameters, dp, settings.batch_size, generator)
            if anchor:
                _add_proximal(parameters, anchor, settings.prox)
            optimiser.step()


class _Sgd:
    """torch.optim.SGD to the last bit, without its hooks and profiler marks (half of a small model's step) and without
    the import of torch's compiler at its first step."""

    def __init__(self, parameters: list[nn.Parameter], settings: LocalTraining) -> None:
        self.parameters = parameters
        self.buffers = [torch.zeros_like(p) for p in parameters] if settings.momentum else []
        self.factors = {
            "lr": settings.learning_rate,
            "momentum": settings.momentum,
            "weight_decay": settings.weight_decay,
            "dampening": 0.0,
            "nesterov": False,
            "maximize": False,
            "is_first_step": False,
        }

    @torch.no_grad()
    def step(self) -> None:
        """Applies the gradients and forgets them; a parameter the loss does not reach stays as it is."""
        reached = [i for i, p in enumerate(self.parameters) if p.grad is not None]
        parameters = [self.parameters[i] for i in reached]
        gradients = [p.grad for p in parameters]
        buffers = [self.buffers[i] for i in reached] if self.buffers else []
        torch._fused_sgd_(parameters, gradients, buffers, **self.factors)  # type: ignore[call-overload]
        for parameter in parameters:
            parameter.grad = None


def _add_proximal(parameters: list[nn.Parameter], anchor: list[Tensor], prox: float) -> None:
    for parameter, start in zip(parameters, anchor, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - start, alpha=prox)
