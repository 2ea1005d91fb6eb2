"""The feature table: unknown devices and zero vectors."""

import numpy as np
import pytest

from cabafl.methods.cabafl.features import FeatureTable, cosine


def test_unknown_device_is_scored_as_if_it_added_nothing() -> None:
    table = FeatureTable()
    table.replace(np.array([[1, 2], [0, 0], [3, 1]], dtype=np.float32))
    with_unknown = table.similarity_with([0], np.array([1]))[0]
    assert with_unknown == pytest.approx(table.similarity([0]), rel=1e-12)


def test_cosine_of_a_zero_vector_is_zero() -> None:
    assert cosine(np.zeros(3), np.ones(3)) == 0.0
