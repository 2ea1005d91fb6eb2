"""The weighted mean of flat models, the one operation all aggregations share."""

from collections.abc import Sequence

import numpy as np

from cabafl.methods.base import Floats, Weights

_BLOCK = 1 << 16  # entries summed at a time: the float64 accumulator stays in cache and costs no model-sized memory


def weighted_mean(models: Sequence[Weights], weights: Floats | Sequence[float]) -> Weights:
    """sum_i weights_i * models_i / sum_i weights_i, in float64 and in the given order, so that bits repeat.

    Models of weight 0 do not take part; at least one weight must be positive.
    """
    total = float(sum(weights))
    if not total > 0:
        raise ValueError("weighted_mean needs a positive weight")
    taking_part = [(model, float(weight) / total) for model, weight in zip(models, weights, strict=True) if weight != 0]
    mean = np.empty_like(models[0])
    for start in range(0, mean.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        accumulator = np.zeros(mean[block].size)
        for model, share in taking_part:
            accumulator += share * model[block].astype(np.float64)
        mean[block] = accumulator
    return mean
