"""The keys of a search: ranges, choices, what is refused before it starts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.comparison.tuning.metric import parse_metric
from cabafl.comparison.tuning.space import Dimension, parse_space
from cabafl.errors import UserError


def only(*settings: str) -> Dimension:
    [dimension] = parse_space(None, settings).dimensions
    return dimension


def test_the_type_of_the_setting_decides() -> None:
    assert (only("method.k=1..20").whole, only("method.gamma=0..1").whole) == (True, False)
    assert only("fleet.faults.loss=0..0.5").high == 0.5
    assert only("run.defence.update_clip=1..5").whole is False  # auto, none or a number
    assert only("fleet.slots=1..20").whole is True  # none or a number
    assert only("training.epochs=1..10").size == 10
    assert only("data.beta=0.1,0.5").choices == ("0.1", "0.5")


@pytest.mark.parametrize(
    ("setting", "log"),
    [
        ("training.learning_rate=0.001..0.1", True),
        ("training.learning_rate=0.001..0.09", False),
        ("training.learning_rate=0.01..0.1:log", True),
        ("training.learning_rate=0.001..0.1:linear", False),
        ("training.momentum=0..0.9", False),
        ("method.m=1..500", True),
        ("data.beta=1e-3..1e1", True),
    ],
)
def test_ranges_over_orders_of_magnitude_are_logarithmic(setting: str, log: bool) -> None:
    assert only(setting).log is log


def test_one_value_holds_for_all_runs_and_the_file_too(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('seed = 4\n[method]\nname = "fedasync"\nalpha = 0.5\n')
    space = parse_space(file, ["fedasync.alpha=0.1..0.9", "data.root=../data", "fleet.slots=3"])
    experiment = space.experiment({"method.alpha": 0.25})
    assert (experiment.seed, experiment.fleet.slots, experiment.data.root) == (4, 3, "../data")
    assert experiment.method.parameters == {"alpha": 0.25}
    assert space.origin() == {"method.alpha": 0.5}


def test_the_first_point_is_the_experiment_itself_if_it_lies_inside() -> None:
    assert parse_space(None, ["method.k=5,10", "training.learning_rate=0.001..0.1"]).origin() == {
        "method.k": "10",
        "training.learning_rate": 0.01,
    }
    assert parse_space(None, ["method.k=11..20"]).origin() is None
    assert parse_space(None, ["method.k=5,7"]).origin() is None
    assert parse_space(None, ["fleet.slots=2..5"]).origin() is None  # not set


def test_values_that_only_go_together() -> None:
    space = parse_space(None, ["privacy.dp_clip=0.5..2", "privacy.dp_noise=0.1..1"])
    assert space.origin() is None


@given(st.floats(0.001, 0.1))
def test_drawn_numbers_are_short_and_inside(value: float) -> None:
    rounded = only("training.learning_rate=0.00123456..0.0987654").rounded(value)
    assert isinstance(rounded, float)
    assert 0.00123456 <= rounded <= 0.0987654
    assert rounded in (0.00123456, 0.0987654) or len(repr(rounded).lstrip("0.")) <= 4


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("method.kk=1..5", "method.kk = 1: unknown key, did you mean 'k'?"),
        ("data.betta=0.1..0.5", "data.betta = 0.1: unknown key"),
        ("fleat.slots=1..5", "fleat.slots: unknown section, did you mean 'fleet'?"),
        ("method.k=5..1", "an empty range; accepted: low..high with low below high"),
        ("method.k=5..5", "an empty range"),
        ("method.k=1.5..5", "the key takes whole numbers"),
        ("method.k=..5", "not a range"),
        ("method.k=1..", "not a range"),
        ("method.k=1..many", "not a range"),
        ("method.k=1..inf", "not a range"),
        ("method.gamma=0..nan", "not a range"),
        ("method.k=1..5:lin", "unknown scale 'lin'; accepted: log, linear"),
        ("method.gamma=0..1:log", "begins above 0"),
        ("method.gamma=0..1.5", "method.gamma = 1.5: accepted"),
        ("training.learning_rate=0..0.1", "training.learning_rate = 0: input should be greater than 0"),
        ("method.selection=1..5", "method.selection = 1: unknown; accepted: balanced"),
        ("data.root=1..5", "data.root = 1: input should be a valid string"),
        ("method.selection=balanced,best", "method.selection = 'best': unknown"),
        ("method.k=5,many", "method.k = 'many'"),
        ("method.k=5,,7", "an empty value"),
        ("method.k=5,5", "5 is there twice"),
        ("method.k=5", "no key is searched"),
        ("run.workers=0..2", "changes no result"),
        ("run.checkpoint_every=1..9", "changes no result"),
        ("deploy.job_ttl=1..9", "changes no result"),
        ("seed=1..9", "seeds are not searched"),
        ("seed=1,2", "seeds are not searched"),
        ("method.name=cabafl,fedavg", "methods are not searched"),
        ("run.virtual_time=100..200", "the rungs are shares of it"),
        ("run.max_dispatches=100,200", "the rungs are shares of it"),
        ("fedasync.alpha=0.1..0.5", "a setting for a method that does not run"),
        ("k=1..5", "k: not a key"),
        ("=1..5", "not a setting"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_line(setting: str, says: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_space(None, [setting])
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_wrong_combinations_of_settings_are_refused() -> None:
    with pytest.raises(UserError, match=r"method\.k: given twice"):
        parse_space(None, ["method.k=1..5", "method.k=7"])
    with pytest.raises(UserError, match=r"cabafl\.k: the same key as method\.k"):
        parse_space(None, ["method.k=1..5", "cabafl.k=7"])
    with pytest.raises(UserError, match=r"run\.virtual_time: not set"):
        parse_space(None, ["method.k=1..5", "run.max_dispatches=50"])


@pytest.mark.parametrize("text", ["time_to_45", "energy_to_45.5", "transfers_to_100"])
def test_metrics(text: str) -> None:
    assert parse_metric(text).lower_is_better


@pytest.mark.parametrize("text", ["acc", "time_to_0", "time_to_101", "time_to_", "loss_to_5", "time_to_-5", ""])
def test_unknown_metrics_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^--metric = "):
        parse_metric(text)
