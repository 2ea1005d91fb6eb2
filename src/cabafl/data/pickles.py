"""Reads untrusted pickles: only arrays, numbers, text and plain containers; no code from the file ever runs.

The globals that a pickled NumPy array refers to resolve to the stand-ins below; every other global is rejected.
"""

import io
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cabafl.data.files import corrupt, read_bytes

_KINDS = "biuf"


class _Type:
    """Stands for numpy.dtype; accepts bool, integer and float types only."""

    __slots__ = ("value",)

    def __init__(self, code: object, *_: object) -> None:
        value = np.dtype(code.decode("latin-1") if isinstance(code, bytes) else str(code))
        if value.kind not in _KINDS:
            raise pickle.UnpicklingError(f"arrays of type {value} are not accepted")
        self.value = value

    def __setstate__(self, state: Any) -> None:
        if any(state[2:5]):
            raise pickle.UnpicklingError("structured arrays are not accepted")
        self.value = self.value.newbyteorder(_text(state[1]))  # type: ignore[arg-type]  # NumPy checks it


class _Array:
    """Stands for numpy.ndarray; ``value`` is empty until the pickle sets its state."""

    __slots__ = ("value",)

    def __init__(self, *_: object) -> None:
        self.value: NDArray[Any] = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        self.value = _from_buffer(content, kind, shape, "F" if fortran else "C").value


def _from_buffer(content: Any, kind: _Type, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.value = np.frombuffer(content, kind.value).reshape(shape, order=order)
    return array


def _scalar(kind: _Type, content: bytes) -> Any:
    return np.frombuffer(content, kind.value, 1)[0].item()


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r} is not accepted")
    return text.encode("latin-1")


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
}
for _core in ("numpy.core", "numpy._core"):
    _STAND_INS[f"{_core}.multiarray", "_reconstruct"] = _Array
    _STAND_INS[f"{_core}.multiarray", "scalar"] = _scalar
    _STAND_INS[f"{_core}.numeric", "_frombuffer"] = _from_buffer


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}; accepted: arrays, containers") from None


def load_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in the file, with text keys and NumPy arrays. Reads pickles of Python 2 and 3."""
    content = read_bytes(path)
    try:
        _check_sizes(content)
        found = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a hostile or broken pickle may raise anything
        raise corrupt(path, f"not a pickle of arrays and plain containers: {error or type(error).__name__}") from None
    if not isinstance(found, dict):
        raise corrupt(path, f"a pickled dictionary expected, found a {type(found).__name__}")
    return {_text(key): value.value if isinstance(value, _Array) else value for key, value in found.items()}


def _check_sizes(content: bytes) -> None:
    """Rejects pickles that make the unpickler allocate gigabytes: huge memo indices, lengths beyond the end."""
    for instruction, argument, _ in pickletools.genops(content):  # genops itself rejects such lengths
        if instruction.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(content):
            raise pickle.UnpicklingError(f"memo index {argument} is not accepted")


def _text(key: object) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)
