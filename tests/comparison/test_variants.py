"""Which methods a comparison runs, and with which keys."""

import pytest

from cabafl.comparison.variants import ablation_variants, method_variants
from cabafl.config import load_experiment
from cabafl.errors import UserError


def test_keys_of_the_file_apply_to_its_method() -> None:
    base = load_experiment(None, ["method.k=7"])
    assert method_variants("paper", base, [])["cabafl"] == {"name": "cabafl", "k": 7}
    assert ablation_variants(base)["conf4"] == {"name": "cabafl", "k": 7, "l1_cache": False}


@pytest.mark.parametrize(
    ("names", "overrides", "message"),
    [
        ("cabafl,fedavgg", [], "did you mean 'fedavg'"),
        ("one:Mine,two:Mine", [], "two methods called Mine"),
        ("cabafl", ["fedsa.tau0=3"], "not compared"),
        ("cabafl", ["cabafl=3"], "cabafl = 3: not a key of a method; accepted: cabafl.key=value"),
        ("cabafl", ["cabafl.name=fedavg"], "not a key of a method"),
    ],
)
def test_wrong_methods_are_refused(names: str, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        method_variants(names, load_experiment(None), overrides)


def test_keys_of_the_file_stay_with_its_method_if_the_command_line_names_another() -> None:
    in_file = load_experiment(None, ["method.k=7"]).method
    base = load_experiment(None, ["method.name=fedavg", "method.weighting=uniform"])
    variants = method_variants("cabafl,fedavg,fedasync", base, [], in_file)
    assert variants["cabafl"] == {"name": "cabafl", "k": 7}
    assert variants["fedavg"] == {"name": "fedavg", "weighting": "uniform"}
    assert variants["fedasync"] == {"name": "fedasync"}
