"""Local training, as a device runs it."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules.batchnorm import _BatchNorm

from cabafl.config import TrainingSection
from cabafl.learning.augmentation import Augmentation
from cabafl.learning.dp import DpSgd, drawn, make_private, per_sample_gradients
from cabafl.learning.optimisers import make_optimiser
from cabafl.methods.base import PLAIN, Floats, Ints, Objective
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


def steps_per_epoch(samples: int, batch_size: int) -> int:
    """Number of steps in a pass over the samples."""
    return max(1, math.ceil(samples / batch_size))


def passes_of(steps: int, batch_size: int, sizes: Ints) -> Floats:
    """Passes over so many samples in ``steps`` steps of training; the last pass may be a part of one."""
    per_pass = np.maximum(1, -(-sizes // batch_size))
    whole, rest = np.divmod(steps, per_pass)
    return whole + rest * batch_size / np.maximum(1, sizes)


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
    augment: Augmentation | None = None

    @property
    def epochs(self) -> int:
        """Number of passes over the samples."""
        return self.settings.epochs if self.objective.epochs is None else self.objective.epochs

    def passes(self, samples: int) -> int:
        """Number of passes over the samples until `TrainingSection.max_steps` or the last epoch ends."""
        most = self.settings.max_steps
        per_epoch = steps_per_epoch(samples, self.settings.batch_size)
        return self.epochs if most is None else min(self.epochs, -(-most // per_epoch))

    def steps(self, epoch: int, samples: int) -> int | None:
        """Number of steps in that pass; None: all."""
        most = self.settings.max_steps
        return None if most is None else most - epoch * steps_per_epoch(samples, self.settings.batch_size)

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
    optimiser, augment, tally = Steps(network, how), _augmentation(how, seed), Tally(how)
    epochs, passes = 0, how.passes(len(y))
    with seeded(seed64(seed, "dropout"), x.device):
        while epochs < passes and not how.ends_after(epochs):
            tally.begin(epochs, last=epochs == passes - 1)
            order = batches(len(y), how.settings.batch_size, seed64(seed, "shuffle", epochs))
            for batch in order[: how.steps(epochs, len(y))]:
                if how.stop is not None and how.stop():
                    raise Cancelled
                index = batch.to(x.device)
                inputs, target = x[index] if augment is None else augment(x[index]), y[index]
                outputs = network(inputs) if len(batch) > 1 else _alone(network, inputs)
                loss = how.loss(outputs, target)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                if tally.wanted:
                    tally.add(outputs, target, loss)
            epochs += 1
    return Figures(*tally.means(), optimiser.count, epochs)


class Tally:
    """Adds up the losses that an objective asks for: over the last epoch, and squared over the first."""

    def __init__(self, how: LocalTraining) -> None:
        self.wanted = False  # in this epoch
        self._how, self._reports, self._squares = how, how.objective.report_loss, how.objective.report_square
        self._loss, self._seen = 0.0, 0
        self._square, self._squared = 0.0, 0

    def begin(self, epoch: int, last: bool) -> None:
        """A new epoch. Each may be the last one if the training can end early."""
        self._loss, self._seen = 0.0, 0
        self._adds_square = self._squares and epoch == 0
        self._adds_loss = self._reports and (last or self._how.enough is not None)
        self.wanted = self._adds_square or self._adds_loss

    def add(self, outputs: Tensor, target: Tensor, loss: Tensor) -> None:
        """A step; ``loss`` is the mean over its samples."""
        if self._adds_loss:
            self._loss += loss.item() * len(target)
            self._seen += len(target)
        if self._adds_square:
            self._square += self._how.losses(outputs.detach(), target).square().sum().item()
            self._squared += len(target)

    def means(self) -> tuple[float | None, float | None]:
        """Mean loss and mean squared loss per sample; None: not asked for."""
        mean = self._loss / self._seen if self._reports else None
        return mean, self._square / self._squared if self._squares else None


def _augmentation(how: LocalTraining, seed: int) -> Callable[[Tensor], Tensor] | None:
    """What changes the samples of a step at random, if anything; the draws follow from the job."""
    augment = how.augment
    if augment is None:
        return None
    generator = torch.Generator().manual_seed(seed64(seed, "augment"))
    return lambda x: augment(x, generator)


def _alone(network: nn.Module, inputs: Tensor) -> Tensor:
    """The outputs for a batch of one sample. A batch-norm layer that gets one value per channel has no variance to
    divide by: it uses its running statistics, and does not change them."""

    switched: list[nn.Module] = []

    def check(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        if module.training and given[0].numel() == given[0].shape[1]:
            switched.append(module.eval())

    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    hooks = [module.register_forward_pre_hook(check) for module in norms]
    try:
        outputs: Tensor = network(inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for module in switched:
            module.train()
    return outputs


def _train_privately(
    network: nn.Module, x: Tensor, y: Tensor, how: LocalTraining, dp: DpSgd, seed: int, dp_seed: int
) -> Figures:
    """DP-SGD: the same number of steps, each on a random share of the samples. Reports no loss, because a loss without
    noise would reveal something about the samples.

    The proximal term, the correction and momentum come after the noise and cost no privacy.
    """
    batch_size = how.settings.batch_size
    optimiser, augment = Steps(network, how), _augmentation(how, seed)
    generator = torch.Generator().manual_seed(seed64(dp_seed, "dp"))
    epochs, passes, usual = 0, how.passes(len(y)), steps_per_epoch(len(y), batch_size)
    with seeded(seed64(seed, "dropout"), x.device), per_sample_gradients(network):
        while epochs < passes and not how.ends_after(epochs):
            for _ in range(min(usual, how.steps(epochs, len(y)) or usual)):
                if how.stop is not None and how.stop():
                    raise Cancelled
                index = drawn(len(y), batch_size, generator).to(x.device)
                if len(index):
                    inputs = x[index] if augment is None else augment(x[index])
                    how.loss(network(inputs), y[index]).backward()  # type: ignore[no-untyped-call]
                make_private(optimiser.parameters, dp, batch_size, generator)
                optimiser.step()
            epochs += 1
    return Figures(None, None, optimiser.count, epochs)


class Steps:
    """Takes the steps of a job: adds what the job adds to gradients (proximal term, correction), then the optimiser
    applies them."""

    def __init__(self, network: nn.Module, how: LocalTraining) -> None:
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        self.prox = how.objective.prox
        self.anchor = [p.detach().clone() for p in self.parameters] if self.prox else []
        self.correction = how.correction
        self.count = 0
        self._apply = make_optimiser(self.parameters, how.settings, how.learning_rate).step

    def step(self) -> None:
        """Applies and clears the gradients."""
        self.count += 1
        if self.anchor:
            _add_proximal(self.parameters, self.anchor, self.prox)
        if self.correction is not None:
            _add_correction(self.parameters, self.correction)
        self._apply()


def _add_proximal(parameters: list[nn.Parameter], anchor: list[Tensor], prox: float) -> None:
    for parameter, start in zip(parameters, anchor, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - start, alpha=prox)


def _add_correction(parameters: list[nn.Parameter], correction: Sequence[Tensor]) -> None:
    for parameter, own in zip(parameters, correction, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(own)
