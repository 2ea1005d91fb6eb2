"""A model as one flat float32 vector: parameters first, then floating buffers, then integer buffers."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a model lies in the flat vector.

    Integer buffers (batch counters) travel as floats and are rounded when a model is loaded, which makes a weighted
    mean of models a rounded weighted mean of the counters.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]  # one more than names: the last is the length of the vector
    trainable: int  # entries [0, trainable) are parameters, the rest buffers
    integers: int  # entries [integers, end) are integer buffers

    @property
    def size(self) -> int:
        """Entries of the flat vector."""
        return self.offsets[-1]

    @property
    def bytes(self) -> int:
        """Bytes of one model on the wire."""
        return 4 * self.size

    def tensors(self, weights: Weights) -> dict[str, Tensor]:
        """Named tensors of a flat vector, integer buffers as int64: the form that is saved."""
        flat = torch.from_numpy(weights.copy())
        named = {}
        for name, shape, start, end in zip(self.names, self.shapes, self.offsets, self.offsets[1:], strict=False):
            tensor = flat[start:end].reshape(shape)
            named[name] = tensor.round().long() if start >= self.integers else tensor.clone()
        return named


class FlatModel:
    """A network with its layout: weights are copied in and out of the network's own tensors.

    The network keeps its own (aligned) memory: training on views of a shared buffer could change the summation order
    of matrix products, and with it the last bits.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        # remove_duplicate: shared tensors appear once
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
        """Where the network computes."""
        return self.tensors[0].device if self.tensors else torch.device("cpu")

    def load(self, weights: Weights) -> None:
        """Copies a flat vector into the network."""
        flat = torch.from_numpy(weights)
        with torch.no_grad():
            for tensor, start, end in self._slices():
                part = flat[start:end].view(tensor.shape)
                tensor.copy_(part if tensor.is_floating_point() else part.round())

    def save(self) -> Weights:
        """The network's state as a new flat vector."""
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
