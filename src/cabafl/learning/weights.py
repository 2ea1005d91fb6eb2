"""Weights to start from: a safetensors file, or a state dictionary that torch saved."""

import pickle
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
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
        weights[start:end] = tensor.detach().float().flatten().numpy()
    if not np.isfinite(weights).all():
        raise UserError(f"{what}: has numbers that are not finite; accepted: finite ones")
    model.load(weights)


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _read(path: Path) -> dict[str, Tensor]:
    """The named tensors of a file. Nothing but tensors is unpickled (``weights_only``)."""
    try:
        with path.open("rb") as file:
            zipped = file.read(2) in (b"PK", b"\x80\x02")  # torch's formats, today's and that of old versions
        found = torch.load(path, map_location="cpu", weights_only=True) if zipped else load_file(path)
    except OSError as error:
        raise UserError(f"model.weights = {str(path)!r}: cannot be read: {error.strerror or error}") from None
    except (SafetensorError, RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError):
        raise UserError(
            f"model.weights = {str(path)!r}: cannot be read; accepted: a safetensors file, or a state dictionary saved "
            "with torch.save"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise UserError(f"model.weights = {str(path)!r}: is not a state dictionary; accepted: name -> tensor")
    return found
