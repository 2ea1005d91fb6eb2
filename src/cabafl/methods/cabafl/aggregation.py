"""The weights of the L1 models in a new global model."""

import numpy as np

from cabafl.methods.base import Floats


def cache_weights(samples: Floats, similarities: Floats, alpha: float, epsilon: float) -> Floats:
    """DS1^alpha / max(1 - CS1, epsilon), normalised to sum 1: more data and better balance weigh more.

    Args:
        samples: DS1, data size of each slot's L1 model; shape (slots,). A slot without an L1 model has 0: weight 0.
        similarities: CS1, cosine of each slot's L1 feature to the global feature; shape (slots,).
        alpha: Exponent of the data size.
        epsilon: Lower bound of the divisor; without it a perfectly balanced model would take all the weight.
    """
    raw = np.where(samples > 0, samples, 0.0) ** alpha / np.maximum(1.0 - similarities, epsilon)
    raw[samples <= 0] = 0.0
    weights: Floats = raw / raw.sum()
    return weights


def equal_weights(samples: Floats) -> Floats:
    """The plain mean over the slots that have an L1 model (ablation variant conf5)."""
    filled = (samples > 0).astype(np.float64)
    weights: Floats = filled / filled.sum()
    return weights
