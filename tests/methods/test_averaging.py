"""The weighted mean against the plain formula."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.methods.averaging import weighted_mean


@given(st.integers(1, 6), st.integers(1, 200_000), st.integers(0, 2**32))
def test_weighted_mean_equals_the_plain_formula(models: int, size: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    stack = draw.normal(size=(models, size)).astype(np.float32)
    weights = draw.random(models) + 0.1
    expected = (weights / weights.sum()) @ stack.astype(np.float64)
    np.testing.assert_allclose(weighted_mean(list(stack), weights), expected, rtol=1e-6, atol=1e-7)


def test_weighted_mean_needs_a_weight() -> None:
    with pytest.raises(ValueError, match="positive"):
        weighted_mean([np.zeros(2, dtype=np.float32)], [0.0])
