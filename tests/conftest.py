"""Settings of all tests, the fixtures that several folders share, and the list of slow tests."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from tests.curves import no_pixels as no_pixels
from tests.lasting import lasting as lasting

torch.set_num_threads(1)
settings.register_profile("suite", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("suite")

# One ``file::test`` per line, made by tools/slow_tests.py.
SLOW = frozenset((Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").split())


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Marks the slow tests."""
    for item in items:
        if item.nodeid.split("[")[0] in SLOW:
            item.add_marker(pytest.mark.slow)
