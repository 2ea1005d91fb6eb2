"""Networks that are hard or impossible to export."""

from torch import Tensor, nn


class Branching(nn.Module):
    """Does something else for the samples that come after the first ones: a trace cannot know."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(input_shape[0], classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(x)
        return scores if len(x) <= 2 else -scores


class Undecided(nn.Module):
    """What it computes depends on the values of all samples together."""

    feature_layer = "out"

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(input_shape[0], classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(x) if float(x.sum()) > 0 else self.out(-x)
        return scores
