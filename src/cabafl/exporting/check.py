"""Compares an exported model with the original on the test samples of the run."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cabafl.data.dataset import Split
from cabafl.errors import UserError
from cabafl.exporting.formats import RUNTIMES, Format, Outputs
from cabafl.learning.builtin_tasks import chosen_metrics, find_task
from cabafl.learning.evaluation import Score, figures, total
from cabafl.lifecycle.loading import LoadedModel

BATCH = 250
TOLERANCE = 1e-3  # of the outputs, relative to the largest one
ROUNDING = 1e-4  # the same, of the best two outputs of a sample: nearer to each other, either may be the prediction


class Agreement(NamedTuple):
    """What the comparison has found."""

    line: str
    figures: dict[str, float]  # the metrics of the original on these samples


def compare_outputs(model: LoadedModel, exported: Outputs, test: Split, form: Format) -> Agreement:
    """Raises `UserError` unless both predict the same for every test sample."""
    learning = find_task(model.spec.task)
    metrics = chosen_metrics(learning, model.spec.task)
    alone = _differences(model(test.x[:1]), exported(test.x[:1]), learning.targets)
    largest, apart, ties, scores = alone[0], 0, 0, []
    for x, y in zip(torch.split(test.x, BATCH), torch.split(test.y, BATCH), strict=True):
        ours = model(x)
        difference, other, tied = _differences(ours, exported(x), learning.targets)
        largest, apart, ties = max(largest, difference), apart + other, ties + tied
        sums = tuple(tuple(metric.sums(ours, y).double().flatten().tolist()) for metric in metrics)
        scores.append(Score(sums, float(learning.loss_sum(ours.double(), y)), len(y)))
    apart = max(apart, alone[1])
    if apart or not largest <= TOLERANCE:
        raise UserError(
            f"--format = {form!r}: the file predicts {apart:,} of {len(test):,} test samples differently (outputs "
            f"differ by {largest:.2g} of the largest one): model.name = {model.spec.model!r} does something that the "
            "format cannot express; nothing is written"
        )
    same = f"the same predictions in {RUNTIMES[form]} as in torch"
    rest = f", {ties:,} ties apart" if ties else ""
    outputs = f"outputs differ by at most {largest:.1g} of the largest one" if largest else "equal outputs"
    line = f"{len(test):,} test samples: {same}{rest}; {outputs}"
    return Agreement(line, figures(total(scores), metrics))


def _differences(ours: Tensor, theirs: Tensor, targets: str) -> tuple[float, int, int]:
    """The largest relative difference of an output; how many samples are predicted differently; and how many only
    because their best two outputs are equal within rounding."""
    if not bool(torch.isfinite(ours).all()):
        raise UserError("the model: its outputs on the test samples are not finite; accepted: another one, e.g. --best")
    if ours.shape != theirs.shape:
        return float("inf"), len(ours), 0
    scale = ours.abs().max().clamp(min=1e-6)
    difference = float((ours - theirs).abs().max() / scale)
    if targets == "numbers":
        return difference, 0, 0
    if targets == "labels":
        other, margin = (ours > 0) != (theirs > 0), ours.abs()
    else:
        other = ours.argmax(dim=-1) != theirs.argmax(dim=-1)
        best = ours.topk(min(2, ours.shape[-1]), dim=-1).values
        margin = best[..., 0] - best[..., -1]
    tied = other & (margin <= ROUNDING * scale)
    return difference, _samples(other & ~tied), _samples(tied)


def _samples(marks: Tensor) -> int:
    """In how many rows something is marked."""
    return int(np.count_nonzero(marks.reshape(len(marks), -1).any(dim=1).numpy()))
