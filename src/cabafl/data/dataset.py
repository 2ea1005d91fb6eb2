"""What every reader returns: tensors in one `Dataset`, whether images, vectors or text; and which device has which of
its samples."""

from dataclasses import dataclass, replace
from typing import Literal

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
    y: Tensor  # what to learn: int64 class numbers; for other tasks also float32, or several numbers per sample
    users: Tensor | None = None  # int64 user number of each sample, if the data has users
    fine: Tensor | None = None  # both label levels, if there are two (CIFAR-100)
    coarse: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

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
    classes: int  # to tell apart, or numbers to predict for a sample
    mean: tuple[float, ...] = ()  # per channel, on the 0..1 scale; empty: no normalisation
    deviation: tuple[float, ...] = ()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample: (channels, height, width), (features,) or (window,)."""
        return tuple(self.train.x.shape[1:])

    def inputs(self, x: Tensor) -> Tensor:
        """Converts stored samples to network inputs: normalised float32 images, float32 vectors, int64 text."""
        if self.kind == "text":
            return x.long()
        x = x.float().div_(255) if x.dtype == torch.uint8 else x.float()
        if not self.mean:
            return x
        shape = (1, -1) + (1,) * (x.dim() - 2)
        mean = torch.tensor(self.mean, device=x.device).view(shape)
        return (x - mean) / torch.tensor(self.deviation, device=x.device).view(shape)

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
