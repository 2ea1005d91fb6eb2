"""One line for whatever is wrong with a setting."""

from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, model_validator

from cabafl.errors import UserError
from cabafl.validation import nearest, unknown, validated


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    colour: Literal["red", "green"] = "red"
    size: int = 1

    @model_validator(mode="after")
    def _rule(self) -> "Inner":
        if self.size == 13:
            raise ValueError("inner.size = 13: accepted: another number")
        return self


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    inner: Inner = Inner()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"inner": {"colour": "gren"}}, "inner.colour = 'gren': unknown, did you mean 'green'?; accepted: red, green"),
        (
            {"inner": {"sizes": 2}},
            "inner.sizes = 2: unknown key, did you mean 'size'?; accepted in [inner]: colour, size",
        ),
        ({"iner": 2}, "iner = 2: unknown key, did you mean 'inner'?; accepted here: inner"),
        ({"inner": {"size": "2"}}, "inner.size = '2': input should be a valid integer"),
        ({"inner": {"size": 13}}, "inner.size = 13: accepted: another number"),
        (
            {"inner": {"size": "2", "colour": 1}},
            "inner.colour = 1: unknown; accepted: red, green; inner.size = '2': input should be a valid integer",
        ),
        (
            {"inner": {"sizes": 2, "zzz": 3}, "iner": 4},
            "inner.sizes = 2: unknown key, did you mean 'size'?; inner.zzz = 3: unknown key; accepted in [inner]: "
            "colour, size; iner = 4: unknown key, did you mean 'inner'?; accepted here: inner",
        ),
        ({"colour": "red"}, "colour = 'red': unknown key, did you mean 'inner.colour'?; accepted here: inner"),
        (
            {"inner": {"colour": "Gre_EN"}},
            "inner.colour = 'Gre_EN': unknown, did you mean 'green'?; accepted: red, green",
        ),
    ],
)
def test_all_mistakes_are_one_line(values: dict[str, object], says: str) -> None:
    with pytest.raises(UserError) as refused:
        validated(Outer, values)
    assert str(refused.value) == says


def test_the_section_comes_before_the_key() -> None:
    with pytest.raises(UserError, match=r"^method\.size = 'x'"):
        validated(Inner, {"size": "x"}, "method")


def test_who_accepts_the_keys_is_named() -> None:
    with pytest.raises(
        UserError, match=r"^method\.siz = 1: unknown key, did you mean 'size'\?; accepted by mine: colour"
    ):
        validated(Inner, {"siz": 1}, "method", owner="mine")


def test_a_line_has_an_end() -> None:
    with pytest.raises(UserError, match=r"k19 = 19: unknown key; accepted here: inner; and 80 more mistakes$"):
        validated(Outer, {f"k{i}": i for i in range(100)})


def test_valid_values_become_the_model() -> None:
    assert validated(Outer, {"inner": {"size": 3}}) == Outer(inner=Inner(size=3))


def test_a_name_is_suggested_only_if_one_is_similar() -> None:
    assert nearest("cabaffl", ["fedavg", "cabafl"]) == ", did you mean 'cabafl'?"
    assert nearest("zzz", ["fedavg", "cabafl"]) == ""
    assert nearest("CIFAR-10", ["cifar100", "cifar10"]) == ", did you mean 'cifar10'?"
    assert str(unknown("method.name", "zzz", ["a", "b"])) == "method.name = 'zzz': unknown; accepted: a, b"
