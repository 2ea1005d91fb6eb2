"""The optimisers of local training. Each job begins with a fresh one."""

from typing import Any, Protocol

import torch
from torch import nn

from cabafl.config import TrainingSection
from cabafl.errors import UserError
from cabafl.own_code import find_own, reason


class Optimiser(Protocol):
    """Changes the parameters by their gradients."""

    def step(self) -> None:
        """Applies and clears the gradients."""


def make_optimiser(parameters: list[nn.Parameter], settings: TrainingSection, learning_rate: float) -> Optimiser:
    """The optimiser of an experiment, for one job."""
    for parameter in parameters:
        parameter.grad = None  # left by a job that failed between backward pass and step
    sgd = settings.optimiser == "sgd"
    made = Sgd(parameters, settings, learning_rate) if sgd else FromTorch(parameters, settings, learning_rate)
    return made if settings.clip_norm is None else Clipped(parameters, settings.clip_norm, made)


def check_optimiser(settings: TrainingSection) -> None:
    """Raises `UserError` if the optimiser of an experiment cannot be made or does not work."""
    parameter = nn.Parameter(torch.ones(2, 2))
    try:
        optimiser = make_optimiser([parameter], settings, settings.learning_rate)
        parameter.grad = torch.ones(2, 2)
        optimiser.step()
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise UserError(f"training.optimiser = {settings.optimiser!r}: cannot be used: {reason(error)}") from error


class Sgd:
    """The same bits as torch.optim.SGD, without its hooks and profiler marks, which take half the time of a small
    model's step, and without importing torch's compiler at the first step."""

    def __init__(self, parameters: list[nn.Parameter], settings: TrainingSection, learning_rate: float) -> None:
        self.parameters = parameters
        self.buffers = [torch.zeros_like(p) for p in parameters] if settings.momentum else []
        self.factors = {
            "lr": learning_rate,
            "momentum": settings.momentum,
            "weight_decay": settings.weight_decay,
            "dampening": 0.0,
            "nesterov": settings.nesterov,
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


class FromTorch:
    """An optimiser of torch, or the user's own with the same interface."""

    def __init__(self, parameters: list[nn.Parameter], settings: TrainingSection, learning_rate: float) -> None:
        name = settings.optimiser
        common: dict[str, Any] = {"lr": learning_rate, "weight_decay": settings.weight_decay}
        if ":" not in name:
            cls = torch.optim.Adam if name == "adam" else torch.optim.AdamW
            betas = (settings.betas[0], settings.betas[1])
            self._inner: torch.optim.Optimizer = cls(parameters, betas=betas, eps=settings.eps, **common)
            return
        made = find_own("training.optimiser", name)
        if not settings.weight_decay:
            del common["weight_decay"]  # its own default; not every optimiser has one
        self._inner = made(parameters, **common, **settings.options)

    def step(self) -> None:
        """See `Optimiser`."""
        self._inner.step()
        self._inner.zero_grad()


class Clipped:
    """Scales the gradient down to a norm before another optimiser uses it."""

    def __init__(self, parameters: list[nn.Parameter], norm: float, inner: Optimiser) -> None:
        self._parameters, self._norm, self._inner = parameters, norm, inner

    def step(self) -> None:
        """See `Optimiser`."""
        nn.utils.clip_grad_norm_(self._parameters, self._norm)
        self._inner.step()
