"""The experiment: defaults, files, settings, and rules about several keys."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from cabafl.config import EXECUTION_KEYS, Experiment, RunSection, apply_override, load_experiment
from cabafl.errors import UserError


def test_settings_override_the_file_and_the_file_overrides_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('seed = 7\n[data]\nbeta = 0.1\ndevices = 30\n[method]\nname = "fedavg"\n')
    experiment = load_experiment(file, ["data.beta=0.3", "method.weighting=uniform"])
    assert (experiment.seed, experiment.data.beta, experiment.data.devices) == (7, 0.3, 30)
    assert experiment.data.partition == "dirichlet"
    assert experiment.method.name == "fedavg"
    assert experiment.method.parameters == {"weighting": "uniform"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=0.1", 0.1),
        ("a.b=true", True),
        ("a.b=plain text", "plain text"),
        ('a.b="0.1"', "0.1"),
        ("a.b={ high = 40, low = 60 }", {"high": 40, "low": 60}),
        ("a.b=none", None),
        ("a.b=x=y", "x=y"),
    ],
)
def test_a_value_is_toml_or_else_plain_text(text: str, value: object) -> None:
    values: dict[str, object] = {}
    apply_override(values, text)
    assert values == {"a": {"b": value}}


@pytest.mark.parametrize("text", ["data.beta", "=3", "data..beta=3"])
def test_a_word_that_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a setting"):
        load_experiment(None, [text])


def test_a_value_is_not_a_section() -> None:
    with pytest.raises(UserError, match="seed is a value, not a section"):
        load_experiment(None, ["seed=3", "seed.data=1"])


def test_a_number_of_jobs_replaces_the_default_length() -> None:
    assert load_experiment(None, ["run.max_dispatches=5"]).run.virtual_time is None
    both = load_experiment(None, ["run.max_dispatches=5", "run.virtual_time=10"])
    assert (both.run.virtual_time, both.run.max_dispatches) == (10, 5)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["run.virtual_time=none"], "run.virtual_time, run.max_dispatches: both missing"),
        (["privacy.dp_noise=1.0"], "privacy.dp_noise = 1.0: needs privacy.dp_clip"),
        (["privacy.feature_noise=1.0"], "privacy.feature_noise = 1.0: needs privacy.feature_clip"),
        (["fleet.faults.present_seconds=5"], "fleet.faults: set both"),
        (["data.dataset=hf:"], "data.dataset = 'hf:': unknown; accepted: mnist5k, "),
        (["data.dataset=hf:a", "data.partition=natural"], "data.user_column: not set; data.partition = natural needs"),
        (["data.dataset=hf:a", "data.test_split=b", "data.test_share=0.1"], "data.test_share = 0.1: not together with"),
        (["data.test_split=b"], "data.test_split = 'b': only for data.dataset = hf:NAME_OR_FOLDER, not mnist5k"),
        (["data.devices=0"], "data.devices = 0: accepted: 'auto' or a whole number from 1"),
        (
            ["fleet.tier_compute_watts={ low = -1 }"],
            "fleet.tier_compute_watts = {'low': -1}: accepted: a table of watts",
        ),
    ],
)
def test_a_rule_is_one_line_that_names_its_keys_once(settings: list[str], says: str) -> None:
    with pytest.raises(UserError) as refused:
        load_experiment(None, settings)
    assert str(refused.value).startswith(says)


def test_slots_are_a_share_of_the_devices_or_a_number() -> None:
    assert Experiment().slots(100) == 10
    assert Experiment().slots(3) == 1
    assert load_experiment(None, ["fleet.participation=0.29"]).slots(100) == 29  # 0.29 * 100 is 28.999...
    assert load_experiment(None, ["fleet.slots=7"]).slots(100) == 7
    with pytest.raises(ValueError, match=r"fleet\.slots = 7: at most the number of devices, 5"):
        load_experiment(None, ["fleet.slots=7"]).slots(5)


def test_sections_are_frozen_and_take_dictionaries() -> None:
    experiment = Experiment(run={"virtual_time": 30})  # type: ignore[arg-type]
    assert experiment.run == RunSection(virtual_time=30)
    with pytest.raises(ValidationError, match="frozen"):
        experiment.run = RunSection()  # type: ignore[misc]


def test_execution_keys_are_keys_of_the_run_section() -> None:
    assert set(EXECUTION_KEYS) < set(RunSection.model_fields)
