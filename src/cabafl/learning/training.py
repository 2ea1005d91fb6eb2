"""Local training, as a device runs it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules.batchnorm import _BatchNorm

from cabafl.config import TrainingSection
from cabafl.learning.augmentation import Augmentation
from cabafl.learning.dp import DpSgd, drawn, make_private, per_sample_gradients, steps_per_epoch
from cabafl.learning.optimisers import make_optimiser
from cabafl.methods.base import PLAIN, Objective
from cabafl.rng import seed64

Loss = Callable[[Tensor, Tensor], Tensor]
LARGEST = 1 << 62  # more steps than any job has
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
    optimiser = make_optimiser(parameters, how.settings, how.learning_rate)
    augment = _augmentation(how, seed)
    total, seen, passes = 0.0, 0, how.passes(len(y))
    with seeded(seed64(seed, "dropout"), x.device):
        for epoch in range(passes):
            order = batches(len(y), how.settings.batch_size, seed64(seed, "shuffle", epoch))
            for batch in order[: how.steps(epoch, len(y))]:
                if stop is not None and stop():
                    raise Cancelled
                index = batch.to(x.device)
                inputs = x[index] if augment is None else augment(x[index])
                outputs = network(inputs) if len(batch) > 1 else _alone(network, inputs)
                loss = how.loss(outputs, y[index])
                loss.backward()  # type: ignore[no-untyped-call]
                if anchor:
                    _add_proximal(parameters, anchor, prox)
                optimiser.step()
                if report_loss and epoch == passes - 1:
                    total += loss.item() * len(batch)
                    seen += len(batch)
    return total / seen if report_loss else None


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
) -> None:
    """DP-SGD: the same number of steps, each on a random share of the samples. Reports no loss, because a loss without
    noise would reveal something about the samples.

    The proximal term and momentum come after the noise and cost no privacy.
    """
    network.train()
    parameters = [p for p in network.parameters() if p.requires_grad]
    prox, batch_size = how.objective.prox, how.settings.batch_size
    anchor = [p.detach().clone() for p in parameters] if prox else []
    optimiser = make_optimiser(parameters, how.settings, how.learning_rate)
    augment = _augmentation(how, seed)
    generator = torch.Generator().manual_seed(seed64(dp_seed, "dp"))
    steps = min(how.epochs * steps_per_epoch(len(y), batch_size), how.settings.max_steps or LARGEST)
    with seeded(seed64(seed, "dropout"), x.device), per_sample_gradients(network):
        for _ in range(steps):
            if how.stop is not None and how.stop():
                raise Cancelled
            index = drawn(len(y), batch_size, generator).to(x.device)
            if len(index):
                inputs = x[index] if augment is None else augment(x[index])
                how.loss(network(inputs), y[index]).backward()  # type: ignore[no-untyped-call]
            make_private(parameters, dp, batch_size, generator)
            if anchor:
                _add_proximal(parameters, anchor, prox)
            optimiser.step()


def _add_proximal(parameters: list[nn.Parameter], anchor: list[Tensor], prox: float) -> None:
    for parameter, start in zip(parameters, anchor, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - start, alpha=prox)
