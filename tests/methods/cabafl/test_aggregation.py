"""Aggregation weights of the L1 models."""

import numpy as np
import pytest

from cabafl.methods.cabafl.aggregation import cache_weights, equal_weights


def test_weights_of_empty_slots_are_zero_and_perfect_balance_is_bounded() -> None:
    weights = cache_weights(np.array([0.0, 4.0, 4.0]), np.array([0.0, 1.0, 0.5]), alpha=0.5, epsilon=1e-8)
    assert weights[0] == 0.0
    assert weights[1] / weights[2] == pytest.approx(0.5 / 1e-8)
    alpha_zero = cache_weights(np.array([0.0, 4.0]), np.array([0.0, 0.5]), alpha=0.0, epsilon=1e-8)
    assert alpha_zero.tolist() == [0.0, 1.0]


def test_equal_weights_skip_empty_slots() -> None:
    assert equal_weights(np.array([0.0, 4.0, 9.0])).tolist() == [0.0, 0.5, 0.5]
