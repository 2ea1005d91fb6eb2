"""What `State` objects may contain, and what stored data may create."""

import json
from array import array
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from cabafl.engine.defence import VotedMedian
from cabafl.methods.base import Floats
from cabafl.state import Decoder, Encoder, State, frozen


@dataclass(frozen=True, slots=True)
class Entry(State):
    device: int
    update: Floats


@dataclass(frozen=True)
class Later(State):
    device: int
    ready: bool = field(default=False, init=False)


class Pair(NamedTuple):
    left: int
    right: int


class Plain(State):
    def __init__(self) -> None:
        self.state = {"an attribute": "of this name"}


def stored(value: Any) -> Any:
    """The value after a round trip through JSON and a table of arrays."""
    encoder = Encoder()
    tree = json.loads(json.dumps(encoder.encode(value)))
    return Decoder(encoder.arrays).decode(tree)


def test_frozen_dataclasses_round_trip() -> None:
    (entry,) = stored([Entry(3, np.arange(2.0))])
    assert isinstance(entry, Entry)
    assert entry.device == 3
    np.testing.assert_array_equal(entry.update, [0.0, 1.0])


@pytest.mark.parametrize("ready", [False, True])
def test_fields_that_the_constructor_does_not_take_round_trip(ready: bool) -> None:
    before = Later(3)
    object.__setattr__(before, "ready", ready)
    assert stored(before) == before


def test_an_attribute_called_state_is_an_attribute() -> None:
    assert stored(Plain()).state == {"an attribute": "of this name"}


def test_arrays_of_floats_come_back_as_they_were() -> None:
    values = array("d", [0.1, float("inf"), -0.0, 1e-300])
    again, empty = stored([values, array("d")])
    assert isinstance(again, array)
    assert again.tobytes() == values.tobytes()
    assert empty == array("d")


def test_a_read_only_array_comes_back_read_only() -> None:
    one, other = stored([frozen(np.arange(3)), np.arange(3)])
    assert not one.flags.writeable
    assert other.flags.writeable


def test_an_encoder_copies_what_it_does_not_share() -> None:
    kept, copied = np.arange(3.0), np.arange(3)
    encoder = Encoder(shares=lambda array: array.dtype == np.float64)
    tree = encoder.encode([kept, copied, copied, torch.from_numpy(copied)])
    copied[:] = 7
    assert encoder.arrays[tree[1][1]] is kept
    assert tree[2] == tree[3]
    assert [encoder.arrays[tree[i][1]].tolist() for i in (2, 4)] == [[0, 1, 2]] * 2


@pytest.mark.parametrize("value", [Pair(1, 2), {1, 2}, array("i"), np.float64(1.0), np.int64(1), b"bytes", object()])
def test_other_types_are_refused_with_their_name(value: Any) -> None:
    with pytest.raises(TypeError, match=f"cannot store a {type(value).__name__}: .*accepted: plain numbers"):
        Encoder().encode([value])


def test_a_class_of_the_package_is_found_after_it_has_moved() -> None:
    values = {"window": 3, "votes": ["dict"]}
    found = Decoder({}).decode(["state", "cabafl.an_earlier_module:VotedMedian", values])
    assert isinstance(found, VotedMedian)
    with pytest.raises(KeyError):
        Decoder({}).decode(["state", "another_package:VotedMedian", values])


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "cabafl.state:Decoder",
        "cabafl.",
        7,
        "tests.test_state:Pair",
        "builtins:dict",
        "cabafl.errors:UserError",
    ],
)
def test_only_subclasses_of_state_are_created(name: str) -> None:
    with pytest.raises(KeyError):
        Decoder({}).decode(["state", name, {}])
