"""Settings that make two runs the same: new keys count only where they differ from what was done before."""

import pytest

from cabafl.config import load_experiment
from cabafl.paper.identity import identity


def test_new_keys_are_left_out_at_their_defaults() -> None:
    keys = set(identity(load_experiment()))
    assert {key for key in keys if key.startswith(("task.", "training."))} == {
        "training.epochs",
        "training.batch_size",
        "training.learning_rate",
        "training.momentum",
        "training.weight_decay",
    }
    assert "model.weights" not in keys


@pytest.mark.parametrize(
    "setting",
    [
        "task.name=regression",
        "task.metric=macro_f1",
        "training.optimiser=adam",
        "training.nesterov=true",
        "training.max_steps=9",
        "training.clip_norm=1.0",
        "training.label_smoothing=0.1",
        "training.augment=flip",
        "training.schedule=cosine",
        "model.weights=start.safetensors",
    ],
)
def test_a_changed_key_makes_another_experiment(setting: str) -> None:
    assert identity(load_experiment(None, [setting])) != identity(load_experiment())


@pytest.mark.parametrize("setting", ["task.metrics=top5", "run.evaluate_devices=5"])
def test_what_is_recorded_beside_changes_no_model(setting: str) -> None:
    assert identity(load_experiment(None, [setting])) == identity(load_experiment())
