"""The object that readers return."""

import torch

from cabafl.data.dataset import Dataset, Split


def test_inputs_normalise_images_and_select_keeps_all_columns() -> None:
    column = torch.arange(4)
    split = Split(torch.full((4, 2, 1, 1), 51, dtype=torch.uint8), column, column, column, column)
    data = Dataset("toy", "image", split, split, 4, mean=(0.2, 0.0), deviation=(1.0, 0.1))
    assert torch.allclose(data.inputs(split.x)[0].flatten(), torch.tensor([0.0, 2.0]))
    chosen = split.select(torch.tensor([3, 1]))
    assert chosen.y.tolist() == [3, 1]
    assert chosen.users is not None
    assert chosen.users.tolist() == [3, 1]
    assert data.input_shape == (2, 1, 1)
