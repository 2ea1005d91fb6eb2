"""The parts of a run, and what is refused before anything runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cabafl import simulate
from cabafl.assembly import announce, assemble, assemble_server
from cabafl.checked import make_method
from cabafl.config import load_experiment
from cabafl.errors import UserError
from cabafl.samples import make_data

QUICK = ["data.dataset=synthetic", "data.devices=10", "model.name=mlp"]


@pytest.fixture
def users(tmp_path: Path) -> list[str]:
    """Twelve users with 20 training and 5 test samples each."""
    draw = np.random.default_rng(1)
    np.savez(
        tmp_path / "users.npz",
        x_train=draw.random((240, 4), dtype=np.float32),
        y_train=np.arange(240) % 3,
        user_train=np.arange(240) % 12,
        x_test=draw.random((60, 4), dtype=np.float32),
        y_test=np.arange(60) % 3,
        user_test=np.arange(60) % 12,
    )
    return ["data.dataset=npz", f"data.root={tmp_path / 'users.npz'}", "data.partition=natural", "model.name=mlp"]


def test_a_limit_takes_random_samples_before_they_are_split() -> None:
    dataset, partition = make_data(load_experiment(None, [*QUICK, "data.train_limit=120", "data.test_limit=30"]))
    assert (len(dataset.train), len(dataset.test)) == (120, 30)
    assert partition.sizes.sum() == 120
    again, _ = make_data(load_experiment(None, [*QUICK, "data.train_limit=120", "seed=2"]))
    assert not np.array_equal(again.train.y.numpy(), dataset.train.y.numpy())


def test_users_are_chosen_first_and_every_one_keeps_a_sample(users: list[str]) -> None:
    settings = [*users, "data.devices=6", "data.train_limit=40"]
    dataset, partition = make_data(load_experiment(None, settings))
    assert len(partition) == 6
    assert partition.sizes.sum() == 40
    assert partition.sizes.min() >= 1
    assert len(dataset.test) == 30  # of the chosen users only


def test_a_limit_below_the_number_of_users_is_refused(users: list[str]) -> None:
    with pytest.raises(UserError, match=r"data\.train_limit = 5: fewer than the 6 users; accepted: from 6"):
        make_data(load_experiment(None, [*users, "data.devices=6", "data.train_limit=5"]))


def test_a_server_has_the_same_test_samples_and_no_training_samples() -> None:
    experiment = load_experiment(None, QUICK)
    here, there = assemble(experiment), assemble_server(experiment, 10)
    assert len(there.task.dataset.train) == 0
    assert there.slots == here.slots
    np.testing.assert_array_equal(there.task.dataset.test.x, here.task.dataset.test.x)
    np.testing.assert_array_equal(there.task.model.save(), here.task.model.save())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["method.name=fedsa", "method.buffer=9", "fleet.slots=4"], "buffer"),
        (["model.feature_layer=relu9"], "relu9"),
        (["fleet.tiers={ high = 3 }"], "the counts add up to 3"),
        (["fleet.faults.trace=/nowhere.csv"], "fleet.faults.trace = '/nowhere.csv': cannot be read"),
        (["method.name=math:pi"], "method.name = 'math:pi': cannot be used"),
        (
            ["method.name=scaffold", "training.optimiser=adam"],
            "training.optimiser = adam: method.name = 'scaffold' computes the gradients of a device from the change",
        ),
        (["method.name=fedac", "training.optimiser=torch.optim:RMSprop"], "only SGD with plain momentum allows; accep"),
        (["method.name=fedac", "training.nesterov=true"], "training.nesterov = true: method.name = 'fedac' computes"),
    ],
)
def test_parts_that_do_not_fit_are_refused(settings: list[str], says: str) -> None:
    with pytest.raises(UserError) as refused:
        assemble(load_experiment(None, [*QUICK, *settings]))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_server_refuses_the_same() -> None:
    experiment = load_experiment(None, [*QUICK, "method.name=scaffold", "training.optimiser=adamw"])
    with pytest.raises(UserError, match=r"^training\.optimiser = adamw: method\.name = 'scaffold' .*; accepted: sgd$"):
        assemble_server(experiment, 10)


def test_targets_of_the_training_part_are_checked(tmp_path: Path) -> None:
    draw, labels = np.random.default_rng(1), np.eye(4)[np.arange(40) % 4]
    arrays: Any = {
        "x_train": draw.random((40, 3)),
        "y_train": labels * 2,
        "x_test": draw.random((40, 3)),
        "y_test": labels,
    }
    np.savez(tmp_path / "mine.npz", **arrays)
    words = ["data.dataset=npz", f"data.root={tmp_path / 'mine.npz'}", "data.partition=iid", "data.devices=4"]
    with pytest.raises(UserError, match=r"^task\.name = 'multilabel': the targets of the data have other values"):
        assemble(load_experiment(None, [*words, "model.name=mlp", "task.name=multilabel"]))


def test_what_devices_reveal_is_announced() -> None:
    said: list[str] = []
    announce(make_method(load_experiment(None, ["method.features=labels"])), said.append)
    announce(make_method(load_experiment(None, [])), said.append)
    assert len(said) == 1
    assert "number of samples per class" in said[0]


@pytest.mark.parametrize(
    ("settings", "simulated", "real"),
    [
        (["data.devices=100"], ("absolute", 1e-6), ("relative", 1.0)),
        (["data.devices=20", "method.sigma=3e-6"], ("relative", 3.0), ("relative", 3.0)),
        (["data.devices=20", "method.sigma_scale=absolute"], ("absolute", 1e-6), ("absolute", 1e-6)),
    ],
)
def test_the_scale_of_sigma_is_decided_for_the_fleet(
    settings: list[str], simulated: tuple[str, float], real: tuple[str, float]
) -> None:
    experiment = load_experiment(None, [*QUICK, *settings])
    devices = experiment.data.devices
    assert isinstance(devices, int)
    for parts, expected in ((assemble(experiment), simulated), (assemble_server(experiment, devices), real)):
        parameters = parts.method.parameters
        assert (parameters.sigma_scale, parameters.sigma) == (expected[0], pytest.approx(expected[1]))


def test_a_sigma_of_the_paper_on_the_relative_scale_is_refused() -> None:
    with pytest.raises(UserError, match=r"^method\.sigma = 3e-06: with .* accepted: 0, or from 0\.001; 3e-06 .* is 3$"):
        make_method(load_experiment(None, ["method.sigma=3e-6", "method.sigma_scale=relative"]))
    with pytest.raises(UserError, match="did you mean 'relative'"):
        make_method(load_experiment(None, ["method.sigma_scale=relativ"]))


def test_the_run_folder_keeps_the_setting_that_was_given(tmp_path: Path) -> None:
    """A comparison recognises its runs by it."""
    simulate(load_experiment(None, [*QUICK, "run.virtual_time=5", "run.workers=0"]), tmp_path / "run")
    assert 'sigma_scale = "auto"\n' in (tmp_path / "run" / "experiment.toml").read_text()
