"""Augmentation: what it does to pictures, and that it follows from the job."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cabafl.config import TrainingSection, load_experiment
from cabafl.errors import UserError
from cabafl.learning.augmentation import check_augmentation, crop, find_augmentation, flip
from cabafl.learning.task import FlatModel
from cabafl.learning.training import LocalTraining, train
from cabafl.lifecycle.simulate import simulate


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_crop_is_a_shifted_picture() -> None:
    x = torch.arange(1.0, 1 + 6 * 2 * 16 * 16).view(6, 2, 16, 16)
    found = crop(x, generator())
    assert found.shape == x.shape
    assert found.is_contiguous(memory_format=torch.channels_last)
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2))
    shifts = set()
    for before, after in zip(padded, found, strict=True):
        places = [
            (up, left)
            for up in range(5)
            for left in range(5)
            if torch.equal(before[:, up : up + 16, left : left + 16], after)
        ]
        assert len(places) == 1
        shifts.add(places[0])
    assert len(shifts) > 1


def test_about_half_of_the_pictures_are_mirrored() -> None:
    x = torch.randn(100, 1, 4, 4)
    found = flip(x, generator())
    mirrored = [torch.equal(after, before.flip(2)) for before, after in zip(x, found, strict=True)]
    same = [torch.equal(after, before) for before, after in zip(x, found, strict=True)]
    assert 30 < sum(mirrored) < 70
    assert [a ^ b for a, b in zip(mirrored, same, strict=True)] == [True] * 100


def test_the_draws_follow_from_the_job() -> None:
    model = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))
    x, y, start, results = torch.randn(20, 1, 8, 8), torch.randint(0, 3, (20,)), model.save(), []
    for noise, seed, name in ((1, 5, "crop-flip"), (2, 5, "crop-flip"), (3, 6, "crop-flip"), (4, 5, None)):
        torch.manual_seed(noise)
        model.load(start)
        how = LocalTraining(TrainingSection(epochs=2, batch_size=20), augment=find_augmentation(name))
        train(model.network, x, y, how, seed)
        results.append(model.save())
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])
    assert not np.array_equal(results[0], results[3])


def test_any_number_of_workers_gives_the_same_run(tmp_path: object) -> None:
    keys = ["training.augment=crop-flip", "training.optimiser=adam", "training.label_smoothing=0.1", "data.devices=10"]
    keys += ["data.train_limit=200", "data.test_limit=50", "run.max_dispatches=6", "training.max_steps=3"]
    one, two = (simulate(load_experiment(None, [*keys, f"run.workers={n}"])) for n in (0, 1))
    assert one.metrics.equals(two.metrics)


def half(x: Tensor, generator: torch.Generator) -> Tensor:
    return x[:, :, ::2]


def test_own_functions() -> None:
    pictures = torch.zeros(2, 1, 8, 8)
    check_augmentation("tests.learning.test_augmentation:flip", pictures)
    check_augmentation(None, torch.zeros(2, 8))
    with pytest.raises(UserError, match=r"float32 of shape \(2, 1, 4, 8\); accepted: what returns float32 of shape"):
        check_augmentation("tests.learning.test_augmentation:half", pictures)
    with pytest.raises(UserError, match="cannot be imported"):
        check_augmentation("tests.learning.test_augmentation:none", pictures)
