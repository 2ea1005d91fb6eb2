"""The weights of the L1 models in a new global model."""

import numpy as np

from cabafl.methods.base import Floats


def cache_weights(samples: Floats, similarities: Floats, alpha: float, epsilon: float) -> Floats:
    """samples^alpha / (1 - similarity), normalised to sum 1: more data and better balance weigh more.

    A slot without samples (nothing screened yet) has weight 0. ``epsilon`` bounds the divisor: perfect balance would
    otherwise take all the weight.
    """
    raw = np.where(samples > 0, samples, 0.0) ** alpha / np.maximum(1.0 - similarities, epsilon)
    raw[samples <= 0] = 0.0
    weights: Floats = raw / raw.sum()
    return weights


def equal_weights(samples: Floats) -> Floats:
    """The plain mean over the slots that hold a screened model (ablation variant conf5)."""
    filled = (samples > 0).astype(np.float64)
    weights: Floats = filled / filled.sum()
    return weights
