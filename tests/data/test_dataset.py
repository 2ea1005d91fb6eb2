"""The object that readers return."""

import json
from dataclasses import replace

import torch

from cabafl.data.dataset import Dataset, Split, network_inputs, preprocessing
from cabafl.data.fingerprint import fingerprint


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


def test_what_a_network_needs_to_be_used_again_is_plain_json() -> None:
    split = Split(torch.zeros((3, 2), dtype=torch.float32), torch.tensor([0, 1, 1]))
    data = Dataset("toy", "vector", split, split, 2, (1.0, 2.0), (2.0, 4.0), ("no", "yes"), ("heat", "noise"))
    about = json.loads(json.dumps(preprocessing(data)))
    assert about == {
        "kind": "vector",
        "input_shape": [2],
        "mean": [1.0, 2.0],
        "deviation": [2.0, 4.0],
        "feature_names": ["heat", "noise"],
        "classes": 2,
        "class_names": ["no", "yes"],
    }
    x = torch.tensor([[3.0, 10.0]])
    assert network_inputs(x, about["kind"], about["mean"], about["deviation"]).tolist() == [[1.0, 2.0]]
    assert torch.equal(data.inputs(x), network_inputs(x, "vector", data.mean, data.deviation))


def test_a_fingerprint_changes_with_everything_that_matters() -> None:
    split = Split(torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]))
    data = Dataset("toy", "vector", split, split, 2)
    order = torch.tensor([1, 0, 2])
    others = [
        data.with_train(split.select(order)),
        data.with_test(split.select(order)),
        data.with_train(replace(split, users=None)),
        data.with_train(replace(split, y=split.y.float())),
        replace(data, class_names=("a", "b")),
        replace(data, mean=(0.0, 0.0), deviation=(1.0, 1.0)),
    ]
    found = {fingerprint(each) for each in (data, *others)}
    assert len(found) == 1 + len(others)
    assert fingerprint(replace(data, name="other")) == fingerprint(data)
    assert all(len(each) == 16 for each in found)
