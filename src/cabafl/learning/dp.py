"""Local training with differential privacy (DP-SGD, Abadi et al., 2016), on per-sample gradients of Opacus.

Each step includes every sample with probability batch / n, clips the gradient of each included sample to a norm, adds
Gaussian noise to their sum and divides by the nominal batch size. This bounds what an upload reveals about any one
sample; `epsilon` computes the bound.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cabafl.config import PrivacySection
from cabafl.errors import UserError

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class DpSgd:
    """The norm each sample's gradient is clipped to, and the noise as a multiple of it."""

    clip: float
    noise: float

    @classmethod
    def of(cls, section: PrivacySection) -> "DpSgd | None":
        """From the experiment's settings; None means training without differential privacy."""
        return None if section.dp_clip is None else cls(section.dp_clip, section.dp_noise)


def drawn(samples: int, batch_size: int, generator: torch.Generator) -> Tensor:
    """Indices of the samples included in one step; may be empty."""
    chosen = torch.rand(samples, generator=generator) < sampling_rate(samples, batch_size)
    return torch.nonzero(chosen).flatten()


@contextmanager
def per_sample_gradients(network: nn.Module) -> Iterator[None]:
    """Inside the context, a backward pass also stores ``grad_sample`` in every parameter."""
    module = _opacus().GradSampleModule
    try:
        wrapped = module(network, loss_reduction="mean")
    except NotImplementedError:
        raise UserError(
            "privacy.dp_noise: the network has layers that mix the samples of a batch (batch normalisation); accepted: "
            "networks without, e.g. model.name = cnn or mlp"
        ) from None
    # Opacus gives silently wrong results for convolutions whose inputs are in channels-last order.
    straight = [m.register_forward_pre_hook(_contiguous) for m in network.modules() if isinstance(m, _CONVOLUTIONS)]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            yield
    finally:
        wrapped.remove_hooks()
        for hook in straight:
            hook.remove()
        for parameter in network.parameters():
            for name in ("grad_sample", "summed_grad", "_forward_counter"):
                if hasattr(parameter, name):
                    delattr(parameter, name)


def _contiguous(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(each.contiguous() for each in inputs)


@torch.no_grad()
def make_private(parameters: list[nn.Parameter], how: DpSgd, batch_size: int, generator: torch.Generator) -> None:
    """Replaces the per-sample gradients of a step by the clipped and noisy gradient that the optimiser uses."""
    found = {p: getattr(p, "grad_sample", None) for p in parameters}
    parts: list[Tensor] = [part for part in found.values() if part is not None]
    factors = None
    if parts:
        norms = torch.stack([part.flatten(1).norm(dim=1) for part in parts], dim=1).norm(dim=1)
        factors = (how.clip / (norms + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        noise = torch.normal(0.0, how.noise * how.clip, parameter.shape, generator=generator)
        part = found[parameter]
        total = noise.to(parameter.device)
        if part is not None and factors is not None:
            total = total + torch.einsum("i,i...->...", factors, part)
            parameter.grad_sample = None  # type: ignore[attr-defined]
        parameter.grad = (total / batch_size).contiguous(memory_format=torch.preserve_format)


def epsilon(how: DpSgd, samples: int, batch_size: int, steps: int, delta: float) -> float:
    """Epsilon of a device with ``samples`` samples after ``steps`` steps, by Renyi accounting."""
    return epsilon_of({(how.noise, sampling_rate(samples, batch_size)): steps}, delta)


def sampling_rate(samples: int, batch_size: int) -> float:
    """Probability that a step includes a given sample."""
    return min(1.0, batch_size / samples)


def epsilon_of(steps: Mapping[tuple[float, float], int], delta: float) -> float:
    """Epsilon of steps of several kinds: (noise, sampling rate) -> number of steps."""
    taken = [(noise, rate, count) for (noise, rate), count in steps.items() if count]
    if not taken:
        return 0.0
    accountant = _opacus().accountants.RDPAccountant()
    accountant.history = taken
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the range of Renyi orders
        return float(accountant.get_epsilon(delta))


def _opacus() -> Any:
    try:
        import opacus
        import opacus.accountants
    except ImportError:
        raise UserError("privacy.dp_noise: needs Opacus; accepted: after pip install 'cabafl[dp]'") from None
    return opacus
