"""The plot of a partition."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cabafl.data.dataset import Partition
from cabafl.errors import UserError
from cabafl.reporting.partition import draw_partition


def even_partition(samples: int, devices: int) -> Partition:
    return Partition(np.arange(samples), np.linspace(0, samples, devices + 1).astype(np.int64))


@pytest.mark.parametrize(("devices", "classes"), [(10, 10), (539, 62), (3000, 10)])
def test_the_plot_is_written(tmp_path: Path, devices: int, classes: int) -> None:
    path = tmp_path / "partition.png"
    draw_partition(even_partition(20000, devices), torch.arange(20000) % classes, classes, "iid", path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_plot_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        draw_partition(even_partition(100, 5), torch.arange(100) % 20, 20, "iid", tmp_path / "no" / "folder.png")
