"""A model as one flat float32 vector: parameters, then floating-point buffers, then integer buffers."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from cabafl.methods.base import Weights


@dataclass(frozen=True)
class Layout:
    """The position of each tensor in the flat vector.

    Integer buffers (batch counters) are stored as floats and rounded when a model is loaded. A weighted mean of models
    therefore contains the rounded weighted mean of the counters.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]  # one more than names; the last one is the length of the vector
    trainable: int  # entries [0, trainable) are parameters, the rest buffers
    integers: int  # entries [integers, end) are integer buffers

    @property
    def size(self) -> int:
        """Length of the flat vector."""
        return self.offsets[-1]

    @property
    def bytes(self) -> int:
        """Bytes of one model when sent."""
        return 4 * self.size

    def tensors(self, weights: Weights) -> dict[str, Tensor]:
        """Splits a flat vector into named tensors, integer buffers as int64: the form of ``model.safetensors``."""
        flat = torch.from_numpy(weights.copy())
        named = {}
        for name, shape, start, end in zip(self.names, self.shapes, self.offsets, self.offsets[1:], strict=False):
            tensor = flat[start:end].reshape(shape)
            named[name] = tensor.round().long() if start >= self.integers else tensor.clone()
        return named


class FlatModel:
    """A network with its layout. Weights are copied into and out of the network's tensors.

    The network does not use views of a shared buffer: their alignment could change the summation order of matrix
    products, and with it the last bits.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        # named_parameters lists shared tensors once
        parameters = list(network.named_parameters())
        buffers = list(_persistent_buffers(network))
        floating = [(name, b) for name, b in buffers if b.is_floating_point()]
        integer = [(name, b) for name, b in buffers if not b.is_floating_point()]
        named = [*parameters, *floating, *integer]
        self.tensors = [tensor.detach() for _, tensor in named]
        sizes = [tensor.numel() for tensor in self.tensors]
        offsets = (0, *np.cumsum(sizes, dtype=int).tolist())
        self.layout = Layout(
            names=tuple(name for name, _ in named),
            shapes=tuple(tuple(tensor.shape) for tensor in self.tensors),
            offsets=offsets,
            trainable=offsets[len(parameters)],
            integers=offsets[len(parameters) + len(floating)],
        )

    @property
    def processor(self) -> torch.device:
        """The torch device that holds the network."""
        return self.tensors[0].device if self.tensors else torch.device("cpu")

    def load(self, weights: Weights) -> None:
        """Copies a flat vector into the network."""
        flat = torch.from_numpy(weights)
        with torch.no_grad():
            for tensor, start, end in self._slices():
                part = flat[start:end].view(tensor.shape)
                tensor.copy_(part if tensor.is_floating_point() else part.round())

    def save(self) -> Weights:
        """Copies the network's state into a new flat vector."""
        weights = np.empty(self.layout.size, dtype=np.float32)
        flat = torch.from_numpy(weights)
        with torch.no_grad():
            for tensor, start, end in self._slices():
                flat[start:end].view(tensor.shape).copy_(tensor)
        return weights

    def _slices(self) -> Iterable[tuple[Tensor, int, int]]:
        return zip(self.tensors, self.layout.offsets, self.layout.offsets[1:], strict=False)


def _persistent_buffers(network: nn.Module) -> Iterable[tuple[str, Tensor]]:
    saved = network.state_dict().keys()
    return ((name, buffer) for name, buffer in network.named_buffers() if name in saved)
