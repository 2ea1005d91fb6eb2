"""The experiment: defaults, files, settings, and rules about several keys."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from cabafl.checked import make_method
from cabafl.config import EXECUTION_KEYS, Experiment, RunSection, apply_override, load_experiment
from cabafl.errors import UserError


def test_settings_override_the_file_and_the_file_overrides_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('seed = 7\n[data]\nbeta = 0.1\ndevices = 30\n[method]\nname = "fedavg"\n')
    experiment = load_experiment(file, ["data.beta=0.3", "method.weighting=uniform"])
    assert load_experiment(str(file), ["data.beta=0.3", "method.weighting=uniform"]) == experiment
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
        (["fleet.forward_share=0"], "fleet.forward_share = 0: input should be greater than 0"),
        (["fleet.forward_share=1.5"], "fleet.forward_share = 1.5: input should be less than or equal to 1"),
        (["fleet.forward_share=nan"], "fleet.forward_share = nan: input should be"),
        (["fleet.idle_watts=-1"], "fleet.idle_watts = -1: input should be greater than or equal to 0"),
        (["fleet.idle_watts=inf"], "fleet.idle_watts = inf: input should be a finite number"),
        (["fleet.power=raspberry-pi"], "fleet.power = 'raspberry-pi': unknown, did you mean 'raspberry-pi-"),
        (
            ['fleet.tier_power={ low = "jetson" }'],
            "fleet.tier_power.low = 'jetson': unknown, did you mean 'jetson-nano'?",
        ),
        (['fleet.tier_power={ lo = "jetson-nano" }'], "fleet.tier_power = {'lo': 'jetson-nano'}: accepted: a table of"),
        (["fleet.tier_idle_watts={ low = inf }"], "fleet.tier_idle_watts = {'low': inf}: accepted: a table of watts"),
        (["model.width=0"], "model.width = 0: input should be greater than 0"),
        (["model.width=9"], "model.width = 9: input should be less than or equal to 8"),
        (["run.average=mean"], "run.average = 'mean': unknown; accepted: polynomial, exponential, none"),
        (["run.keep=none"], "run.keep = None: unknown; accepted: last, best, both"),
        (["data.dataset=hf:"], "data.dataset = 'hf:': unknown; accepted: mnist5k, "),
        (["data.dataset=hf:a", "data.partition=natural"], "data.user_column: not set; data.partition = natural needs"),
        (["data.dataset=hf:a", "data.test_split=b", "data.test_share=0.1"], "data.test_share = 0.1: not together with"),
        (["data.test_split=b"], "data.test_split = 'b': only for data.dataset = hf:NAME_OR_FOLDER, not mnist5k"),
        (["data.devices=0"], "data.devices = 0: accepted: 'auto' or a whole number from 1 to 10,000,000"),
        (["data.devices=1000000000000"], "data.devices = 1000000000000: accepted: 'auto' or a whole number from 1"),
        (["beta=0.1"], "beta = 0.1: unknown key, did you mean 'data.beta'?; accepted here: seed, data, "),
        (["model.batch_size=1"], "model.batch_size = 1: unknown key, did you mean 'training.batch_size'?; accepted in"),
        (["name=mlp"], "name = 'mlp': unknown key, did you mean 'task.name' or 'model.name' or 'method.name'?"),
        (["loss=1.0"], "loss = 1.0: unknown key, did you mean 'fleet.faults.loss'?"),
        (["data.dataset=CIFAR10"], "data.dataset = 'CIFAR10': unknown, did you mean 'cifar10'?"),
        (["data.partition=IID"], "data.partition = 'IID': unknown, did you mean 'iid'?"),
        (["run.device=gpu"], "run.device = 'gpu': unknown, did you mean 'cuda'?; accepted: cpu, cuda, cuda:N"),
        (["run.device=tpu"], "run.device = 'tpu': unknown; accepted: cpu, cuda, cuda:N"),
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


def test_default_watts_are_as_good_as_unset_without_a_board() -> None:
    """Files of earlier versions name them."""
    named = ["fleet.compute_watts=15.0", "fleet.radio_watts=2", "fleet.idle_watts=0.0"]
    assert load_experiment(None, named) == Experiment()
    assert load_experiment(None, ["fleet.compute_watts=14"]).fleet.compute_watts == 14
    assert load_experiment(None, [*named, "fleet.power=jetson-nano"]).fleet.compute_watts == 15
    with pytest.raises(UserError, match="idle_watts = False: input should be a valid number"):
        load_experiment(None, ["fleet.idle_watts=false"])


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


METHOD_FILE = "[data]\nbeta = 0.1\n[method]\nk = 7\nalpha = 0.5\n"  # CaBaFL's, which is the default method


@pytest.mark.parametrize(
    ("settings", "name", "keys"),
    [
        ([], "cabafl", {"k": 7, "alpha": 0.5}),
        (["method.name=cabafl", "method.k=9"], "cabafl", {"k": 9, "alpha": 0.5}),
        (["method.name=fedavg"], "fedavg", {}),
        (["method.weighting=uniform", "method.name=fedavg"], "fedavg", {"weighting": "uniform"}),
        (["method.name=fedasync", "method.alpha=0.3"], "fedasync", {"alpha": 0.3}),  # not the file's alpha
        (["method.name=my_module:MyMethod"], "my_module:MyMethod", {}),
        (["method.name=fedavg", "method.name=cabafl"], "cabafl", {"k": 7, "alpha": 0.5}),  # the last one counts
        (['method={ name = "fedavg" }'], "fedavg", {}),
    ],
)
def test_keys_of_the_files_method_do_not_apply_to_another(
    settings: list[str], name: str, keys: dict[str, object], tmp_path: Path
) -> None:
    file = tmp_path / "a.toml"
    file.write_text(METHOD_FILE)
    experiment = load_experiment(file, settings)
    assert (experiment.method.name, experiment.method.parameters) == (name, keys)
    assert experiment.data.beta == 0.1


def test_a_key_of_the_command_line_has_to_fit_the_method(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(METHOD_FILE)
    with pytest.raises(UserError, match=r"^method.k = 9: unknown key"):
        make_method(load_experiment(file, ["method.name=fedavg", "method.k=9"]))
    make_method(load_experiment(file, ["method.name=fedavg"]))


def test_a_wrong_method_section_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("method = 3\n")
    with pytest.raises(UserError, match=r"a\.toml: method = 3: "):
        load_experiment(file)
    with pytest.raises(UserError, match="method is a value, not a section"):
        load_experiment(file, ["method.name=fedavg"])


def test_a_mistake_in_a_file_names_the_file_and_all_wrong_keys(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[data]\nbta = 1\nsead = 2\n[run]\nwork = 3\n")
    with pytest.raises(UserError) as refused:
        load_experiment(file)
    text = str(refused.value)
    assert text.startswith(f"{file}: data.bta = 1: unknown key, did you mean 'beta'?; data.sead = 2: unknown key")
    assert "run.work = 3: unknown key, did you mean 'workers'?; accepted in [run]: virtual_time, " in text
    assert "more" not in text


def test_a_mistake_of_the_command_line_does_not_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("seed = 2\n")
    with pytest.raises(UserError, match=r"^data\.bta = 1: unknown key"):
        load_experiment(file, ["data.bta=1"])
