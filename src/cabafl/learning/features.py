"""The feature distribution of a set of samples: one layer's activations, summed. Additive by construction."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cabafl.errors import UserError
from cabafl.validation import nearest

_BATCH = 500


def layer_names(network: nn.Module) -> list[str]:
    """The dotted names a feature layer can have."""
    return [name for name, _ in network.named_modules() if name]


def find_layer(network: nn.Module, name: str | None) -> nn.Module:
    """The module behind a dotted name."""
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
    """One vector per sample: pictures are averaged over positions, of sequences the last step counts."""
    if output.dim() == 4:
        return output.mean(dim=(2, 3))
    if output.dim() == 3:
        return output[:, -1]
    return output.flatten(1)


def _counts(output: Tensor) -> Tensor:
    """How often each neuron is active, over all positions of a sample."""
    active = output > 0
    if output.dim() == 4:
        return active.sum(dim=(2, 3))
    return active.sum(dim=1) if output.dim() == 3 else active.flatten(1)


def feature_sum(network: nn.Module, layer: nn.Module, x: Tensor, counts: bool = False) -> Tensor:
    """Sum over the samples of the layer's activations (or of how often each neuron is active), in float64.

    Evaluation mode, no gradient; the network stays in evaluation mode.
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
    """The activations of every sample by itself, one float64 row each; `feature_sum` is their sum."""
    network.eval()
    with torch.inference_mode(), _captured(layer) as outputs:
        network(x)
        return _activations(outputs[-1]).double().cpu()


def label_histogram(y: Tensor, classes: int) -> Tensor:
    """How many samples of each class, in float64."""
    return torch.bincount(y, minlength=classes).double().cpu()
