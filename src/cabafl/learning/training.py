"""Local SGD, as a device runs it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from cabafl.config import TrainingSection
from cabafl.learning.dp import DpSgd, drawn, make_private, per_sample_gradients, steps_per_epoch
from cabafl.methods.base import PLAIN, Objective
from cabafl.rng import seed64

Loss = Callable[[Tensor, Tensor], Tensor]
Stop = Callable[[], bool]
"""Asked before every step, exactly once; True ends the training."""


class Cancelled(Exception):
    """A training was told to stop. The network is left half trained."""


@dataclass(frozen=True)
class LocalTraining:
    """How one job trains: the experiment's settings, and where the method's objective differs from them."""

    settings: TrainingSection
    objective: Objective = PLAIN
    dp: DpSgd | None = None
    loss: Loss = F.cross_entropy
    stop: Stop | None = None

    @property
    def epochs(self) -> int:
        """Number of passes over the samples."""
        return self.settings.epochs if self.objective.epochs is None else self.objective.epochs

    @property
    def learning_rate(self) -> float:
        """Learning rate of this job."""
        return self.settings.learning_rate * self.objective.lr_scale


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seeds torch's default generator inside the context and restores its state afterwards.

    torch's layers (initial weights, dropout) accept no generator, so the default one has to be used.
    """
    if device is not None and device.type == "cuda":
        with torch.random.fork_rng(devices=[device]):
            torch.manual_seed(seed)
            yield
        return
    # torch.manual_seed also records a stack trace for every GPU back end, in every job.
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)


def batches(samples: int, batch_size: int, seed: int) -> tuple[Tensor, ...]:
    """The batches of one epoch, in a random order that depends only on ``seed``; the last batch may be smaller."""
    generator = torch.Generator().manual_seed(seed)
    return torch.split(torch.randperm(samples, generator=generator), batch_size)


def train(
    network: nn.Module, x: Tensor, y: Tensor, how: LocalTraining, seed: int, dp_seed: int | None = None
) -> float | None:
    """Trains the network in place on one device's samples, with a fresh optimiser. With ``report_loss``, returns the
    mean loss over the samples of the last epoch. Raises `Cancelled` if ``how.stop`` says so.

    Each epoch visits all samples in a new order. ``prox`` adds prox * (w - w_start) to the gradient, before momentum.
    """
    if how.dp is not None:
        _train_privately(network, x, y, how, how.dp, seed, seed if dp_seed is None else dp_seed)
        return None
    network.train()
    parameters = [p for p in network.parameters() if p.requires_grad]
    prox, report_loss, stop = how.objective.prox, how.objective.report_loss, how.stop
    anchor = [p.detach().clone() for p in parameters] if prox else []
    optimiser = _Sgd(parameters, how)
    total = 0.0
    with seeded(seed64(seed, "dropout"), x.device):
        for epoch in range(how.epochs):
            for batch in batches(len(y), how.settings.batch_size, seed64(seed, "shuffle", epoch)):
                if stop is not None and stop():
                    raise Cancelled
                index = batch.to(x.device)
                loss = how.loss(network(x[index]), y[index])
                loss.backward()  # type: ignore[no-untyped-call]
                if anchor:
                    _add_proximal(parameters, anchor, prox)
                optimiser.step()
                if report_loss and epoch == how.epochs - 1:
                    total += loss.item() * len(batch)
    return total / len(y) if report_loss else None


def _train_privately(
    network: nn.Module, x: Tensor, y: Tensor, how: LocalTraining, dp: DpSgd, seed: int, dp_seed: int
) -> None:
    """DP-SGD: the same number of steps, each on a random share of the samples. Reports no loss, because a loss without
    noise would reveal something about the samples.

    The proximal term and momentum come after the noise and cost no privacy.
    """
    network.train()
    parameters = [p for p in network.parameters() if p.requires_grad]
    prox, batch_size = how.objective.prox, how.settings.batch_size
    anchor = [p.detach().clone() for p in parameters] if prox else []
    optimiser = _Sgd(parameters, how)
    generator = torch.Generator().manual_seed(seed64(dp_seed, "dp"))
    steps = how.epochs * steps_per_epoch(len(y), batch_size)
    with seeded(seed64(seed, "dropout"), x.device), per_sample_gradients(network):
        for _ in range(steps):
            if how.stop is not None and how.stop():
                raise Cancelled
            index = drawn(len(y), batch_size, generator).to(x.device)
            if len(index):
                how.loss(network(x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
            make_private(parameters, dp, batch_size, generator)
            if anchor:
                _add_proximal(parameters, anchor, prox)
            optimiser.step()


class _Sgd:
    """The same bits as torch.optim.SGD, without its hooks and profiler marks, which take half the time of a small
    model's step, and without importing torch's compiler at the first step."""

    def __init__(self, parameters: list[nn.Parameter], how: LocalTraining) -> None:
        self.parameters = parameters
        for parameter in parameters:
            parameter.grad = None  # left by a job that failed between backward pass and step
        self.buffers = [torch.zeros_like(p) for p in parameters] if how.settings.momentum else []
        self.factors = {
            "lr": how.learning_rate,
            "momentum": how.settings.momentum,
            "weight_decay": how.settings.weight_decay,
            "dampening": 0.0,
            "nesterov": False,
            "maximize": False,
            "is_first_step": False,
        }

    @torch.no_grad()
    def step(self) -> None:
        """Applies and clears the gradients; parameters without a gradient do not change."""
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
