"""A task of your own: a range that holds the number with a probability of 80 %, instead of the number itself."""

import torch
from torch import Tensor

from cabafl import LearningTask, TaskMetric

LOW, HIGH = 0.1, 0.9


class Range(LearningTask):
    """The network has two outputs, the 10 % and the 90 % quantile of the number; the loss is the pinball loss."""

    targets = "numbers"

    def outputs(self, classes: int, y: Tensor) -> int:
        """Two outputs for one number."""
        return 2

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """An error costs more on the side on which it should be rare."""
        errors = y[:, None] - outputs
        quantiles = torch.tensor([LOW, HIGH], dtype=outputs.dtype, device=outputs.device)
        return torch.maximum(quantiles * errors, (quantiles - 1) * errors).sum(dim=1)

    def metrics(self) -> list[TaskMetric]:
        """The pinball loss, and how many of the numbers lie inside their range."""
        return [
            TaskMetric("pinball", lambda outputs, y: self.losses(outputs, y).sum(), more_is_better=False),
            TaskMetric("covered", lambda o, y: ((o[:, 0] <= y) & (y <= o[:, 1])).sum(), percent=True),
        ]
