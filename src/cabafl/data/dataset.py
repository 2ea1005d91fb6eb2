"""What a reader returns: plain tensors, the same shape of object for pictures, vectors and text."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["image", "vector", "text"]


@dataclass(frozen=True)
class Split:
    """Samples of the training or the test part.

    ``x`` keeps the stored type (uint8 pictures, float32 vectors, uint8 symbols): a picture takes a quarter of the
    memory and is turned into numbers when a device gathers its samples (`Dataset.inputs`).
    """

    x: Tensor
    y: Tensor  # int64 class numbers, the ones that are learned
    users: Tensor | None = None  # int64 user of each sample, where the data says so
    fine: Tensor | None = None  # both label levels, where there are two (CIFAR-100)
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
    """Training and test part with what is needed to turn stored samples into network inputs."""

    name: str
    kind: Kind
    train: Split
    test: Split
    classes: int
    mean: tuple[float, ...] = ()  # per channel, on the 0..1 scale; empty: values are used as they are
    deviation: tuple[float, ...] = ()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample: (channels, height, width), (features,) or (window,)."""
        return tuple(self.train.x.shape[1:])

    def inputs(self, x: Tensor) -> Tensor:
        """Stored samples as a network takes them: pictures normalised float32, vectors float32, text int64."""
        if self.kind == "text":
            return x.long()
        x = x.float().div_(255) if x.dtype == torch.uint8 else x.float()
        if not self.mean:
            return x
        shape = (1, -1) + (1,) * (x.dim() - 2)
        mean = torch.tensor(self.mean, device=x.device).view(shape)
        return (x - mean) / torch.tensor(self.deviation, device=x.device).view(shape)

    def with_test(self, test: Split) -> "Dataset":
        """The same data set with another test part."""
        return replace(self, test=test)

    def with_train(self, train: Split) -> "Dataset":
        """The same data set with another training part."""
        return replace(self, train=train)
