"""Untrusted pickles yield arrays and plain containers, or a `UserError`."""

import os
import pickle
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabafl.data.pickles import load_pickle
from cabafl.errors import UserError


class Runs:
    """Pickles to something that runs a shell command when unpickled without protection."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


def test_a_hostile_pickle_is_rejected_and_not_executed(tmp_path: Path) -> None:
    path, trace = tmp_path / "data_batch_1", tmp_path / "trace"
    path.write_bytes(pickle.dumps({b"data": Runs(f"touch {trace}")}))
    with pytest.raises(UserError, match=r"data_batch_1 cannot be used: .*posix\.system") as caught:
        load_pickle(path)
    assert "\n" not in str(caught.value)
    assert not trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"c_codecs\nencode\n(Vabc\nVrot13\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo index of two billion
        b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00.",  # a bytearray of a terabyte
        pickle.dumps([1, 2]),
        pickle.dumps(OrderedDict(a=1)),
        pickle.dumps({"x": np.array([object()])}),
        pickle.dumps({"x": np.zeros(2, dtype=[("a", "i4")])}),
        pickle.dumps({"x": np.arange(1000)})[:-30],
    ],
)
def test_unusable_pickles_are_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train"
    path.write_bytes(content)
    with pytest.raises(UserError, match="train cannot be used"):
        load_pickle(path)


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "f4", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_round_trip(tmp_path: Path, protocol: int, dtype: str, order: Any) -> None:
    array = np.asarray(np.arange(12).reshape(3, 4), dtype=dtype, order=order)
    path = tmp_path / "x"
    content = {"a": array, b"b": [1, "two", (3.0, None)], "c": np.int64(7)}
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    found = load_pickle(path)
    assert found["a"].dtype == array.dtype
    assert np.array_equal(found["a"], array)
    assert (found["b"], found["c"]) == ([1, "two", (3.0, None)], 7)


@given(st.data())
def test_a_damaged_pickle_gives_a_dictionary_or_a_user_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(pickle.dumps({"data": np.arange(20, dtype=np.uint8), "labels": [1, 2]}, protocol=2))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(bytes(content))
    with suppress(UserError):
        assert isinstance(load_pickle(path), dict)
