"""Samples as a user has them, for a trained network: put into the form of the training samples, exactly as
`arrays` does that for training."""

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cabafl.data.arrays import bytes_of, channels_first, check_finite_numbers
from cabafl.data.dataset import Kind, network_inputs
from cabafl.data.given import array_of, is_frame, is_row
from cabafl.data.tables import feature_arrays, tidy
from cabafl.errors import UserError

Pixels = Literal["bytes", "floats"]


class InputForm(NamedTuple):
    """The form of the samples that a network was trained with."""

    kind: Kind
    shape: tuple[int, ...]  # of one sample
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    pixels: Pixels | None = None  # of images: bytes are divided by 255; None: of a run that did not record it
    feature_names: tuple[str, ...] = ()
    symbols: int = 0  # of text


def raw_inputs(x: Any, form: InputForm) -> Tensor:
    """Arrays, tensors, lists or a pandas frame, one sample or several, as the network takes them; raises `UserError` if
    they do not have the form of the training samples."""
    if is_row(x) and set(form.feature_names) & {str(name) for name in x.index}:
        x = x.to_frame().T
    array = _from_frame(x, form) if is_frame(x) else array_of(x, "x", _error)
    if array.dtype.kind not in "iufb":
        raise _error(f"x is {array.dtype} of shape {array.shape}; accepted: numbers")
    stored = _stored(_batch(array, form), form)
    return network_inputs(torch.from_numpy(np.ascontiguousarray(stored)), form.kind, form.mean, form.deviation)


def _error(reason: object) -> UserError:
    return UserError(str(reason))


def _from_frame(frame: Any, form: InputForm) -> NDArray[Any]:
    """Columns are matched by their names."""
    if form.kind != "vector" or len(form.shape) != 1:
        raise _error(f"x: a frame; accepted: arrays of shape {form.shape}, or n x {form.shape} for n samples")
    if not form.feature_names:
        raise _error("x: a frame, but the features of the training samples have no names; accepted: an array")

    def complain(reason: object) -> UserError:
        return _error(f"x: {reason}")

    return feature_arrays(tidy(frame, complain), form.feature_names, complain)


def _batch(x: NDArray[Any], form: InputForm) -> NDArray[Any]:
    """The samples with the shape (samples, *shape)."""
    shape = form.shape
    for many in (x, x[None]):
        if form.kind == "image" and many.ndim == 3 and (1, *many.shape[1:]) == shape:
            return many[:, None]
        if form.kind == "image" and many.ndim == 4 and channels_first(many).shape[1:] == shape:
            return channels_first(many)
        if many.shape[1:] == shape:
            return many
    more = f", with the channels first or last{', or without' if shape[0] == 1 else ''}" if form.kind == "image" else ""
    raise _error(f"x: shape {x.shape}; accepted: {shape}, or n x {shape} for n samples{more}")


def _stored(x: NDArray[Any], form: InputForm) -> NDArray[Any]:
    """The samples with the type that the training samples are kept in."""
    whole = x.dtype.kind != "f"
    if form.kind == "text":
        if not whole or (x.size and not 0 <= x.min() <= x.max() < form.symbols):
            raise _error(f"x: {_range(x)}; accepted: symbols, integers from 0 to {form.symbols - 1}")
        return x.astype(np.int64)
    if form.kind == "vector":
        return _floats(x)
    if whole and form.pixels == "floats":
        raise _error(
            f"x: {x.dtype} pixels, but the network was trained with floating-point ones; accepted: those, on the same "
            "scale"
        )
    if whole:
        return bytes_of("x", x, _error)
    x = _floats(x)
    if form.pixels == "bytes" and x.size and not 0 <= x.min() <= x.max() <= 1:
        raise _error(f"x: {_range(x)}; accepted: pixels as integers from 0 to 255, or as fractions from 0 to 1")
    return x


def _floats(x: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
    check_finite_numbers(_error, "x", x)
    return x


def _range(x: NDArray[Any]) -> str:
    return f"{x.dtype} from {x.min():g} to {x.max():g}" if x.size else str(x.dtype)
