"""Networks that are hard or impossible to export."""

from typing import Any

import torch
from torch import Tensor, nn


class Branching(nn.Module):
    """Does something else for the samples that come after the first ones: a trace cannot know."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(input_shape[0], classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(x)
        return scores if len(x) <= 2 else -scores


class Remote(nn.Module):
    """Calls something that no exporter understands."""

    feature_layer = "out"

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(input_shape[0], classes)

    def forward(self, x: Tensor) -> Tensor:
        outside: Any = torch.from_numpy(x.detach().numpy() + 0.0)
        scores: Tensor = self.out(outside)
        return scores
