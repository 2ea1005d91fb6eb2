"""Shared by all readers: reading files, and checks that raise a one-line `UserError`."""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cabafl.data.catalogue import DESCRIPTIONS
from cabafl.errors import UserError


def corrupt(path: Path, reason: object) -> UserError:
    """The error for a file that exists but has unusable content."""
    return UserError(f"data file {path} cannot be used: {one_line(reason)}")


def missing(name: str, path: Path) -> UserError:
    """The error for a missing file, with how to get it."""
    return UserError(f"data set {name}: {path} not found; {DESCRIPTIONS[name].get}")


def one_line(reason: object) -> str:
    """An error message on one line, truncated to 200 characters."""
    text = " ".join(str(reason).split()) or type(reason).__name__
    return text if len(text) <= 200 else text[:197] + "..."


def failure(error: BaseException) -> str:
    """An error of the user's code on one line, with its type."""
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def require(name: str, *candidates: Path) -> Path:
    """The first candidate that exists. If none does, raises an error that names the first."""
    for path in candidates:
        if path.exists():
            return path
    raise missing(name, candidates[0])


def read_bytes(path: Path) -> bytes:
    """The file's bytes, decompressed if its name ends in .gz."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise corrupt(path, error) from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises `UserError` for any other JSON value."""
    try:
        content = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise corrupt(path, f"not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise corrupt(path, f"a JSON object expected, found a {type(content).__name__}")
    return content


def read_table(path: Path, dtype: type[np.generic], delimiter: str | None = None) -> NDArray[Any]:
    """A text file of numbers as a two-dimensional array, even for a single row or column."""
    lines = read_bytes(path).decode("ascii", errors="replace").splitlines()
    if not any(line.strip() for line in lines):
        raise corrupt(path, "the file is empty")
    try:
        return np.loadtxt(lines, dtype=dtype, delimiter=delimiter, ndmin=2, comments=None)
    except (ValueError, OverflowError) as error:
        raise corrupt(path, error) from None


def check_finite(path: Path, name: str, values: NDArray[Any]) -> None:
    """Rejects NaN and infinity: a single one would spread to every model."""
    finite = np.isfinite(values)
    if not finite.all():
        first = tuple(int(i) for i in np.unravel_index(int(np.argmin(finite)), values.shape))
        raise corrupt(path, f"{name}{list(first)} is {values[first]}; only finite numbers are accepted")


def class_numbers(path: Path, values: object, classes: int) -> NDArray[np.int64]:
    """Labels as an int64 array; raises `UserError` for values outside 0..classes-1."""
    try:
        found = np.asarray(values)
    except ValueError as error:
        raise corrupt(path, f"labels: {error}") from None
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise corrupt(path, f"labels must be a list of integers, found {found.dtype} of shape {found.shape}")
    wrong = (found < 0) | (found >= classes)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise corrupt(path, f"label {first} is {found[first]}; accepted: 0..{classes - 1}")
    return found.astype(np.int64)


def dense_users(train: NDArray[Any], test: NDArray[Any] | None = None) -> tuple[Tensor, Tensor | None]:
    """Numbers user IDs of any type: training users are 0..U-1 in sorted order, users only in ``test`` follow."""
    known, train_ids = np.unique(train, return_inverse=True)
    users = torch.from_numpy(train_ids.reshape(-1).astype(np.int64))
    if test is None:
        return users, None
    names, inverse = np.unique(test, return_inverse=True)
    at = np.minimum(np.searchsorted(known, names), max(len(known) - 1, 0))
    new = known[at] != names if len(known) else np.ones(len(names), bool)
    numbers = np.where(new, len(known) + np.cumsum(new) - 1, at)
    return users, torch.from_numpy(numbers[inverse.reshape(-1)].astype(np.int64))
