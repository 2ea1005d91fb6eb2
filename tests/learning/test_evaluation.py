"""Accuracy and loss."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from cabafl.learning.builtin_tasks import Classification
from cabafl.learning.evaluation import evaluate


def test_evaluation_counts() -> None:
    network = nn.Identity()
    scores = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]])
    task = Classification()
    score = evaluate(network, scores, torch.tensor([0, 1, 1]), task, task.metrics()[:1], batch=2)
    assert (score.sums, score.samples) == (((2.0,),), 3)
    assert score.loss == pytest.approx(float(F.cross_entropy(scores, torch.tensor([0, 1, 1]), reduction="sum")))
