"""Weights to start from: a safetensors file, or a state dictionary that torch saved."""

import warnings
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from cabafl.errors import UserError
from cabafl.learning.task import FlatModel


def start_from(model: FlatModel, path: Path) -> None:
    """Loads the weights of a file into the network; raises `UserError` unless all its tensors are there, and no
    others, with their shapes."""
    found, what = _read(path), f"model.weights = {str(path)!r}"
    layout = model.layout
    missing = [name for name in layout.names if name not in found]
    if missing:
        raise UserError(f"{what}: has no {missing[0]!r}{_more(missing)}; accepted: all tensors of the network")
    unknown = [name for name in found if name not in layout.names]
    if unknown:
        raise UserError(f"{what}: the network has no {unknown[0]!r}{_more(unknown)}; accepted: its tensors only")
    weights = np.empty(layout.size, dtype=np.float32)
    parts = zip(layout.names, layout.shapes, layout.offsets, layout.offsets[1:], strict=False)
    for name, shape, start, end in parts:
        tensor = found[name]
        if tuple(tensor.shape) != shape:
            raise UserError(f"{what}: {name!r} has the shape {tuple(tensor.shape)}; accepted: {shape}")
        if tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized or tensor.is_meta:
            raise UserError(f"{what}: {name!r} is a {_kind(tensor)} tensor; accepted: plain numbers")
        weights[start:end] = tensor.detach().float().flatten().numpy()
    if not np.isfinite(weights).all():
        raise UserError(f"{what}: has numbers that are not finite; accepted: finite ones")
    model.load(weights)


def _kind(tensor: Tensor) -> str:
    if tensor.layout != torch.strided:
        return "sparse"
    return "complex" if tensor.is_complex() else "quantised" if tensor.is_quantized else "meta"


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _read(path: Path) -> dict[str, Tensor]:
    """The named tensors of a file. Nothing but tensors is unpickled (``weights_only``)."""
    try:
        with path.open("rb") as file:
            header = file.read(9)[8:] == b"{"  # after its length, of safetensors; else it may be a file of torch
        with warnings.catch_warnings(action="ignore"):  # what it says about strange files is said below
            found = load_file(path) if header else torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"model.weights = {str(path)!r}: cannot be read: {error.strerror or error}") from None
    except Exception:  # the libraries raise almost anything for a damaged or strange file
        raise UserError(
            f"model.weights = {str(path)!r}: cannot be read; accepted: a safetensors file, or a state dictionary saved "
            "with torch.save"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        inner = next((key for key in ("state_dict", "model_state_dict", "model") if _nests(found, key)), None)
        hint = f"; save its {inner!r} alone" if inner is not None else ""
        raise UserError(f"model.weights = {str(path)!r}: is not a state dictionary; accepted: name -> tensor{hint}")
    return found


def _nests(found: object, key: str) -> bool:
    """Whether the file is a training checkpoint with the weights inside."""
    return isinstance(found, dict) and isinstance(found.get(key), dict)
