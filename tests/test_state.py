"""What `State` objects may contain, and what stored data may create."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from cabafl.methods.base import Floats
from cabafl.state import Decoder, Encoder, State


@dataclass(frozen=True, slots=True)
class Entry(State):
    device: int
    update: Floats


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


def test_an_attribute_called_state_is_an_attribute() -> None:
    assert stored(Plain()).state == {"an attribute": "of this name"}


@pytest.mark.parametrize("value", [Pair(1, 2), {1, 2}, np.float64(1.0), np.int64(1), b"bytes", object()])
def test_other_types_are_refused_with_their_name(value: Any) -> None:
    with pytest.raises(TypeError, match=f"cannot store a {type(value).__name__}: .*accepted: plain numbers"):
        Encoder().encode([value])


@pytest.mark.parametrize("name", ["os:system", "tests.test_state:Pair", "builtins:dict", "cabafl.errors:UserError"])
def test_only_subclasses_of_state_are_created(name: str) -> None:
    with pytest.raises(KeyError):
        Decoder({}).decode(["state", name, {}])
