"""The paper's observations: a layer's features show how balanced data are, more finely than labels do.

The feature of a set of samples is the sum of the layer's activations over them. The closer its cosine to the feature of
all samples is to 1, the more balanced the set.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from cabafl.assembly import make_task
from cabafl.config import Experiment
from cabafl.data.dataset import Dataset, Partition, Split
from cabafl.data.partition import make_partition
from cabafl.errors import UserError
from cabafl.learning.features import features_of_each, find_layer
from cabafl.learning.task import Task
from cabafl.learning.training import LocalTraining, train
from cabafl.methods.base import Objective
from cabafl.rng import rng, seed64
from cabafl.samples import make_data

Floats = npt.NDArray[np.float64]
PARTS = 5  # unbalanced parts, besides the balanced one


@dataclass(frozen=True)
class SplitSimilarities:
    """Cosines to the feature of all data for one kind of split; one row per draw."""

    name: str
    parts: Floats  # columns: D0 (balanced), D1 to D5
    unions: Floats  # columns: D1, D1 + D2, ..., D1 + ... + D5


def observe(experiment: Experiment, betas: Sequence[float], epochs: int, draws: int) -> list[SplitSimilarities]:
    """Trains the model on all data for ``epochs``, then splits the data ``draws`` times for IID and for each beta.

    Data sets with coarse labels get one more split: balanced coarse labels, unbalanced fine labels.
    """
    dataset, partition = observed_data(experiment)
    return observe_data(experiment, dataset, partition, betas, epochs, draws)


def observed_data(experiment: Experiment) -> tuple[Dataset, Partition]:
    """The data of an experiment, undivided."""
    data = experiment.data.model_copy(update={"partition": "iid", "devices": PARTS + 1})
    return make_data(experiment.model_copy(update={"data": data}))


def observe_data(
    experiment: Experiment, dataset: Dataset, partition: Partition, betas: Sequence[float], epochs: int, draws: int
) -> list[SplitSimilarities]:
    """`observe` on data that are already there."""
    task = make_task(experiment, dataset, partition)
    features = sample_features(task, epochs)
    kinds = [("IID", "iid", 1.0), *((f"beta = {beta:g}", "dirichlet", beta) for beta in betas)]
    found = [_measure(name, kind, beta, dataset, features, experiment.seed, draws) for name, kind, beta in kinds]
    if dataset.train.coarse is not None:
        name = "balanced coarse, unbalanced fine labels"
        found.append(_measure(name, "coarse-balanced", min(betas), dataset, features, experiment.seed, draws))
    return found


def sample_features(task: Task, epochs: int) -> Floats:
    """Trains on all samples, then returns one feature vector per sample, shape (samples, width)."""
    torch.set_num_threads(1)
    network = task.model.network
    x, y = task.gather(np.arange(len(task.dataset.train)))
    if len(y) == 0:
        raise UserError("data.train_limit: no samples to observe")
    how = LocalTraining(task.spec.training, Objective(epochs=epochs), task.dp)
    train(network, x, y, how, seed64(task.spec.seed, "observe"))
    layer = find_layer(network, task.feature_layer)
    rows = [features_of_each(network, layer, part) for part in torch.split(x, 500)]
    return torch.cat(rows).numpy()


def _measure(
    name: str, kind: str, beta: float, dataset: Dataset, features: Floats, seed: int, draws: int
) -> SplitSimilarities:
    whole = features.sum(axis=0)
    parts, unions = np.empty((draws, PARTS + 1)), np.empty((draws, PARTS))
    for number in range(draws):
        balanced, rest = _set_apart(len(features), seed, number)
        pieces = _pieces(kind, dataset.train, rest, beta, seed64(seed, "observe", number))
        sums = [features[balanced].sum(axis=0), *(features[piece].sum(axis=0) for piece in pieces)]
        parts[number] = [_cosine(whole, part) for part in sums]
        unions[number] = [_cosine(whole, union) for union in np.cumsum(sums[1:], axis=0)]
    return SplitSimilarities(name, parts, unions)


def _set_apart(samples: int, seed: int, number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Indices of the balanced part, a random sixth of the samples, and of the rest."""
    order = rng(seed, "observe balanced", number).permutation(samples)
    size = samples // (PARTS + 1)
    return order[:size], np.sort(order[size:])


def _pieces(
    kind: str, train: Split, rest: npt.NDArray[np.int64], beta: float, seed: int
) -> list[npt.NDArray[np.int64]]:
    chosen: Partition = make_partition(
        kind, train.select(torch.from_numpy(rest)), PARTS, beta=beta, min_samples=10, seed=seed
    )
    return [rest[chosen.device(part)] for part in range(PARTS)]


def _cosine(a: Floats, b: Floats) -> float:
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))
