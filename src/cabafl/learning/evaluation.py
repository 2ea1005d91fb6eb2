"""Accuracy and loss on test samples."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Score(NamedTuple):
    """Sums over samples, so that the scores of chunks can be added."""

    correct: int
    loss: float
    samples: int


def evaluate(network: nn.Module, x: Tensor, y: Tensor, batch: int = 500) -> Score:
    """Counts correct predictions and sums the cross entropy, batch by batch in a fixed order."""
    network.eval()
    correct, loss = 0, 0.0
    with torch.inference_mode():
        for inputs, labels in zip(torch.split(x, batch), torch.split(y, batch), strict=True):
            scores = network(inputs)
            correct += int((scores.argmax(dim=1) == labels).sum())
            loss += float(F.cross_entropy(scores.double(), labels, reduction="sum"))
    return Score(correct, loss, len(y))
