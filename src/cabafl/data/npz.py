"""The user's own arrays in a NumPy file; `arrays` says which, and how they are read."""

import zipfile
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cabafl.data.arrays import ABOUT, TEST, TRAIN, USERS, dataset_of
from cabafl.data.catalogue import DESCRIPTIONS
from cabafl.data.dataset import Dataset
from cabafl.data.files import corrupt, missing
from cabafl.data.text import text_dataset
from cabafl.errors import UserError
from cabafl.validation import nearest


def read(root: Path | None, tokens: bool = False) -> Dataset:
    """Reads the file ``root``, as text if the task predicts ``tokens``; raises `UserError` if it is not set, missing or
    unusable."""
    if root is None:
        raise UserError(f"data.root is not set; {DESCRIPTIONS['npz'].get}")
    path = Path(root).expanduser()
    arrays = read_arrays("npz", path, TEST, (*TRAIN, *USERS, *ABOUT))
    return (text_dataset if tokens else dataset_of)("npz", arrays, partial(corrupt, path))


def read_arrays(
    name: str, path: Path, required: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """The named arrays in a .npz file of data set ``name``; pickled objects are never loaded."""
    if not path.is_file():
        raise missing(name, path)
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise corrupt(path, "it is a single array; a .npz file expected")
        with content:
            names = list(content.files)
            _check_names(path, names, required, optional)
            return {key: np.asarray(content[key]) for key in (*required, *optional) if key in names}
    except (
        OSError,
        EOFError,
        ValueError,
        KeyError,
        RuntimeError,
        MemoryError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise corrupt(path, f"not a .npz file of plain arrays{_reason(path, error)}") from None


def _check_names(path: Path, names: Sequence[str], required: Sequence[str], optional: Sequence[str]) -> None:
    """Raises an error if an array is missing, or is there under a misspelt name; others are none of our business."""
    known = (*required, *optional)
    for name in names:
        hint = "" if name in known else nearest(name, [key for key in known if key not in names], 0.85)
        if hint:
            raise corrupt(path, f"unknown array {name}{hint}; accepted: {', '.join(known)}")
    absent = [key for key in required if key not in names]
    if absent:
        raise corrupt(path, f"missing {', '.join(absent)}; found: {', '.join(names) or 'nothing'}")


def _reason(path: Path, error: Exception) -> str:
    """Why such a file cannot be read; NumPy's advice to load pickled objects is left out."""
    if "allow_pickle" not in str(error):
        return f": {error}"
    if zipfile.is_zipfile(path):
        return ": it holds Python objects; accepted: numbers and text"
    return "; accepted: what numpy.savez or `cabafl data convert` writes"
