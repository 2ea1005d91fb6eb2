"""Local SGD, as a device runs it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

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
Enough = Callable[[int], bool]
"""Asked after every epoch but the last, with the number of epochs done; True: the training is complete as it is."""


class Cancelled(Exception):
    """A training was told to stop. The network is left half trained."""


class Figures(NamedTuple):
    """What a training tells besides the network: mean loss of the last epoch and mean squared sample loss of the first
    one, if the objective asks for them, and how much was done."""

    loss: float | None
    square_loss: float | None
    steps: int
    epochs: int


def sample_losses(output: Tensor, target: Tensor) -> Tensor:
    """The cross entropy of each sample."""
    return F.cross_entropy(output, target, reduction="none")


@dataclass(frozen=True)
class LocalTraining:
    """How one job trains: the experiment's settings, and where the method's objective differs from them."""

    settings: TrainingSection
    objective: Objective = PLAIN
    dp: DpSgd | None = None
    loss: Loss = F.cross_entropy
    losses: Loss = sample_losses  # of each sample
    stop: Stop | None = None
    enough: Enough | None = None
    correction: Sequence[Tensor] | None = None  # one tensor per trained parameter

    @property
    def epochs(self) -> int:
        """Number of passes over the samples."""
        return self.settings.epochs if self.objective.epochs is None else self.objective.epochs

    @property
    def learning_rate(self) -> float:
        """Learning rate of this job."""
        return self.settings.learning_rate * self.objective.lr_scale

    def ends_after(self, epochs: int) -> bool:
        """Whether this many epochs are enough; one at least is done."""
        return epochs > 0 and self.enough is not None and self.enough(epochs)


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
) -> Figures:
    """Trains the network in place on one device's samples, with a fresh optimiser. Raises `Cancelled` if ``how.stop``
    says so.

    Each epoch visits all samples in a new order. ``prox`` adds prox * (w - w_start) to the gradient and ``correction``
    adds itself, before momentum. A training that ``how.enough`` ends after some epochs is the same as one that was to
    have so many.
    """
    network.train()
    if how.dp is not None:
        return _train_privately(network, x, y, how, how.dp, seed, seed if dp_seed is None else dp_seed)
    objective, stop, optimiser = how.objective, how.stop, _Sgd(network, how)
    total = squares = 0.0
    epochs = 0
    with seeded(seed64(seed, "dropout"), x.device):
        while epochs < how.epochs and not how.ends_after(epochs):
            reports = objective.report_loss and (epochs == how.epochs - 1 or how.enough is not None)
            total = 0.0
            for batch in batches(len(y), how.settings.batch_size, seed64(seed, "shuffle", epochs)):
                if stop is not None and stop():
                    raise Cancelled
                index = batch.to(x.device)
                output, target = network(x[index]), y[index]
                loss = how.loss(output, target)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                if reports:
                    total += loss.item() * len(batch)
                if objective.report_square and epochs == 0:
                    squares += how.losses(output.detach(), target).square().sum().item()
            epochs += 1
    mean_loss = total / len(y) if objective.report_loss else None
    return Figures(mean_loss, squares / len(y) if objective.report_square else None, optimiser.steps, epochs)


def _train_privately(
    network: nn.Module, x: Tensor, y: Tensor, how: LocalTraining, dp: DpSgd, seed: int, dp_seed: int
) -> Figures:
    """DP-SGD: the same number of steps, each on a random share of the samples. Reports no loss, because a loss without
    noise would reveal something about the samples.

    The proximal term, the correction and momentum come after the noise and cost no privacy.
    """
    batch_size = how.settings.batch_size
    optimiser = _Sgd(network, how)
    generator = torch.Generator().manual_seed(seed64(dp_seed, "dp"))
    epochs = 0
    with seeded(seed64(seed, "dropout"), x.device), per_sample_gradients(network):
        while epochs < how.epochs and not how.ends_after(epochs):
            for _ in range(steps_per_epoch(len(y), batch_size)):
                if how.stop is not None and how.stop():
                    raise Cancelled
                index = drawn(len(y), batch_size, generator).to(x.device)
                if len(index):
                    how.loss(network(x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
                make_private(optimiser.parameters, dp, batch_size, generator)
                optimiser.step()
            epochs += 1
    return Figures(None, None, optimiser.steps, epochs)


class _Sgd:
    """The same bits as torch.optim.SGD, without its hooks and profiler marks, which take half the time of a small
    model's step, and without importing torch's compiler at the first step. Before each step it adds what the job adds
    to gradients: proximal term and correction."""

    def __init__(self, network: nn.Module, how: LocalTraining) -> None:
        self.parameters = parameters = [p for p in network.parameters() if p.requires_grad]
        for parameter in parameters:
            parameter.grad = None  # left by a job that failed between backward pass and step
        self.prox = how.objective.prox
        self.anchor = [p.detach().clone() for p in parameters] if self.prox else []
        self.correction = how.correction
        self.steps = 0
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
        self.steps += 1
        if self.anchor:
            _add_proximal(self.parameters, self.anchor, self.prox)
        if self.correction is not None:
            _add_correction(self.parameters, self.correction)
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


def _add_correction(parameters: list[nn.Parameter], correction: Sequence[Tensor]) -> None:
    for parameter, own in zip(parameters, correction, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(own)
