"""Steps along updates.

An update covers the trainable entries of a model. The others, statistics of batch normalisation, are no directions:
they become the mean of the uploads, with the method's own weights.
"""

import math
from collections.abc import Sequence

import numpy as np

from cabafl.methods.averaging import weighted_mean
from cabafl.methods.base import Floats, Weights


def update(sent: Weights, trained: Weights, trainable: int) -> Floats:
    """Delta_k: the trained minus the received model, trainable entries, in float64."""
    return trained[:trainable].astype(np.float64) - sent[:trainable]


def stepped(model: Weights, step: Floats, uploads: Sequence[Weights], weights: Sequence[float]) -> Weights:
    """A new model: the trainable entries moved by ``step``, the others the weighted mean of the uploads."""
    trainable = len(step)
    buffers = weighted_mean([upload[trainable:] for upload in uploads], weights)
    return np.concatenate([(model[:trainable] + step).astype(np.float32), buffers])


def weighted_sum(vectors: Sequence[Floats], weights: Sequence[float]) -> Floats:
    """sum_i weights_i * vectors_i, in the given order."""
    total = np.zeros_like(vectors[0])
    for vector, weight in zip(vectors, weights, strict=True):
        total += weight * vector
    return total


def length(vector: Floats) -> float:
    """Euclidean norm, in a summation order that repeats."""
    return math.sqrt(float((vector * vector).sum()))


def agreement(model: Weights, sent: Weights, delta: Floats) -> float:
    """cos(W - W_sent, Delta_k): how far an update agrees with what the server did meanwhile. 1 if the server has not
    moved, 0 for a zero update."""
    moved = update(sent, model, len(delta))
    norms = length(moved) * length(delta)
    if not moved.any():
        return 1.0
    return min(1.0, max(-1.0, float((moved * delta).sum()) / norms)) if norms > 0 else 0.0
