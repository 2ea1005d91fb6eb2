"""The feature distribution of a set of samples: the sum of one layer's activations. Sums of disjoint sets add up."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cabafl.errors import UserError
from cabafl.validation import nearest

_BATCH = 500


def layer_names(network: nn.Module) -> list[str]:
    """The dotted names of all layers."""
    return [name for name, _ in network.named_modules() if name]


def find_layer(network: nn.Module, name: str | None) -> nn.Module:
    """The layer of that name; raises `UserError` if there is none."""
    names = layer_names(network)
    if name is None:
        raise UserError(f"model.feature_layer is missing and this model names none; accepted: {', '.join(names)}")
    if name not in names:
        hint = f"{nearest(name, names)}; accepted: {', '.join(names)}"
        raise UserError(f"model.feature_layer = {name!r}: the model has no such layer{hint}")
    return network.get_submodule(name)


@contextmanager
def _captured(layer: nn.Module) -> Iterator[list[Tensor]]:
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        outputs.append(output[0] if isinstance(output, tuple) else output)

    handle = layer.register_forward_hook(keep)
    try:
        yield outputs
    finally:
        handle.remove()


def _activations(output: Tensor) -> Tensor:
    """One vector per sample: the mean over positions for images, the last step for sequences."""
    if output.dim() == 4:
        return output.mean(dim=(2, 3))
    if output.dim() == 3:
        return output[:, -1]
    return output.flatten(1)


def _counts(output: Tensor) -> Tensor:
    """Per sample, how often each neuron is active, summed over positions."""
    active = output > 0
    if output.dim() == 4:
        return active.sum(dim=(2, 3))
    return active.sum(dim=1) if output.dim() == 3 else active.flatten(1)


def feature_sum(network: nn.Module, layer: nn.Module, x: Tensor, counts: bool = False) -> Tensor:
    """The sum over the samples of the layer's activations, in float64; with ``counts`` of how often each neuron is
    active.

    Puts the network into evaluation mode and leaves it there.
    """
    network.eval()
    reduce = _counts if counts else _activations
    total: Tensor | None = None
    with torch.inference_mode(), _captured(layer) as outputs:
        for part in torch.split(x, _BATCH):
            outputs.clear()
            network(part)
            batch = reduce(outputs[-1]).sum(dim=0, dtype=torch.float64)
            total = batch if total is None else total + batch
    assert total is not None, "a device without samples has no feature"
    return total.cpu()


def features_of_each(network: nn.Module, layer: nn.Module, x: Tensor) -> Tensor:
    """The activations of each sample as a float64 row; `feature_sum` is the sum of the rows."""
    network.eval()
    with torch.inference_mode(), _captured(layer) as outputs:
        network(x)
        return _activations(outputs[-1]).double().cpu()


def label_histogram(y: Tensor, classes: int) -> Tensor:
    """Number of samples per class, in float64."""
    return torch.bincount(y, minlength=classes).double().cpu()
