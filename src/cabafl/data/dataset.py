"""What every reader returns: tensors in one `Dataset`, whether images, vectors or text; and which device has which of
its samples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Kind = Literal["image", "vector", "text"]


@dataclass(frozen=True)
class Split:
    """Training or test samples.

    ``x`` keeps the stored type (uint8 images, float32 vectors, uint8 symbols). uint8 takes a quarter of the memory of
    float32; `Dataset.inputs` converts a device's samples when they are gathered.
    """

    x: Tensor
    y: Tensor  # what to learn: int64 class numbers (N,), or float32 targets (N,) or (N, targets)
    users: Tensor | None = None  # int64 user number of each sample, if the data has users
    fine: Tensor | None = None  # both label levels, if there are two (CIFAR-100)
    coarse: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def labelled(self) -> bool:
        """Whether the samples have classes."""
        return self.y.dim() == 1 and not self.y.is_floating_point()

    def select(self, index: Tensor) -> "Split":
        """The samples at ``index``, in that order."""
        rest = {
            name: values[index] for name in ("users", "fine", "coarse") if (values := getattr(self, name)) is not None
        }
        return Split(self.x[index], self.y[index], **rest)


@dataclass(frozen=True)
class Dataset:
    """Training and test samples, and how to convert them to network inputs."""

    name: str
    kind: Kind
    train: Split
    test: Split
    classes: int  # 0: the targets are numbers
    mean: tuple[float, ...] = ()  # per channel of images, on the 0..1 scale, or per feature; empty: no normalisation
    deviation: tuple[float, ...] = ()
    class_names: tuple[str, ...] = ()  # in the order of the class numbers; empty: the numbers are the names
    feature_names: tuple[str, ...] = ()  # of vectors, if they have names

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample: (channels, height, width), (features,) or (window,)."""
        return tuple(self.train.x.shape[1:])

    def inputs(self, x: Tensor) -> Tensor:
        """Converts stored samples to network inputs: normalised float32 images, float32 vectors, int64 text."""
        return network_inputs(x, self.kind, self.mean, self.deviation)

    @property
    def has_classes(self) -> bool:
        """Whether every sample has one class."""
        return self.test.y.dim() == 1 and not self.test.y.is_floating_point()

    def with_test(self, test: Split) -> "Dataset":
        """A copy with other test samples."""
        return replace(self, test=test)

    def with_train(self, train: Split) -> "Dataset":
        """A copy with other training samples."""
        return replace(self, train=train)


def network_inputs(x: Tensor, kind: Kind, mean: Sequence[float] = (), deviation: Sequence[float] = ()) -> Tensor:
    """Converts samples to what a network takes: bytes of images are divided by 255, and numbers become (x - mean) /
    deviation. ``kind``, ``mean`` and ``deviation`` are those of `preprocessing`."""
    if kind == "text":
        return x.long()
    x = x.float().div_(255) if kind == "image" and x.dtype == torch.uint8 else x.float()
    if not mean:
        return x
    shape = (1, -1) + (1,) * (x.dim() - 2) if kind == "image" else (-1,)
    centre = torch.tensor(mean, device=x.device).view(shape)
    return (x - centre) / torch.tensor(deviation, device=x.device).view(shape)


def preprocessing(dataset: Dataset) -> dict[str, Any]:
    """What a trained network needs to be used again, as plain JSON: `network_inputs` applies ``kind``, ``mean`` and
    ``deviation`` to samples of ``input_shape``; output i is the class ``class_names[i]``."""
    return {
        "kind": dataset.kind,
        "input_shape": list(dataset.input_shape),
        "mean": list(dataset.mean),
        "deviation": list(dataset.deviation),
        "feature_names": list(dataset.feature_names),
        "classes": dataset.classes,
        "class_names": list(dataset.class_names),
    }


@dataclass(frozen=True)
class Partition:
    """Device k has the samples ``indices[offsets[k]:offsets[k + 1]]``. Two arrays, for any number of devices."""

    indices: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples per device."""
        return np.diff(self.offsets)

    def chunks(self, samples: int) -> list[range]:
        """Ranges of consecutive devices, each with about this many samples in total."""
        chunks, first = [], 0
        while first < len(self):
            last = int(np.searchsorted(self.offsets, self.offsets[first] + samples))
            last = min(max(last, first + 1), len(self))
            chunks.append(range(first, last))
            first = last
        return chunks

    def device(self, k: int) -> NDArray[np.int64]:
        """Sample numbers of device k, ascending."""
        if not 0 <= k < len(self):
            raise IndexError(f"device {k} of {len(self)}")
        return self.indices[self.offsets[k] : self.offsets[k + 1]]
