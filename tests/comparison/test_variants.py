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
    ],
)
def test_wrong_methods_are_refused(names: str, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        method_variants(names, load_experiment(None), overrides)
