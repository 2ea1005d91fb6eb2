"""The user's own arrays in a NumPy file: x_train, y_train[, user_train], x_test, y_test[, user_test].

Type and shape of ``x`` decide how it is read:

* images: uint8 (N, H, W), or uint8 or float (N, H, W, C) or (N, C, H, W). Standardised per channel with the mean and
  standard deviation of the training samples (uint8 is divided by 255 first).
* vectors: numbers (N, F), or float windows (N, steps, channels). Not rescaled: scale them before saving.

Labels may be any integers; the sorted training labels map to 0..C-1.
"""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cabafl.data.catalogue import DESCRIPTIONS
from cabafl.data.dataset import Dataset, Split
from cabafl.data.files import check_finite, corrupt, dense_users, missing
from cabafl.errors import UserError

Arrays = dict[str, NDArray[Any]]
REQUIRED = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("user_train", "user_test")
_CHUNK = 2048


def read(root: Path | None) -> Dataset:
    """Reads the file ``root``; raises `UserError` if it is not set, missing or unusable."""
    if root is None:
        raise UserError(f"data.root is not set; {DESCRIPTIONS['npz'].get}")
    path = Path(root).expanduser()
    arrays = read_arrays("npz", path, REQUIRED, OPTIONAL)
    _check_lengths(path, arrays)
    return from_arrays("npz", path, arrays, *_labels(path, arrays["y_train"], arrays["y_test"]))


def from_arrays(
    name: str, path: Path, arrays: Arrays, classes: int, y: NDArray[np.int64], test_y: NDArray[np.int64]
) -> Dataset:
    """The data set of inputs and users in ``arrays``, with these class numbers; ``path`` is named in errors."""
    image, x, test_x = _inputs(path, arrays)
    users, test_users = _users(path, arrays)
    train = Split(torch.from_numpy(x), torch.from_numpy(y), users)
    test = Split(torch.from_numpy(test_x), torch.from_numpy(test_y), test_users)
    mean, deviation = _moments(x) if image else ((), ())
    return Dataset(name, "image" if image else "vector", train, test, classes, mean, deviation)


def read_arrays(name: str, path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> Arrays:
    """The named arrays in a .npz file of data set ``name``; pickled objects are never loaded."""
    if not path.is_file():
        raise missing(name, path)
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise corrupt(path, "it is a single array; a .npz file expected")
        with content:
            names = list(content.files)
            absent = [key for key in required if key not in names]
            if absent:
                raise corrupt(path, f"missing {', '.join(absent)}; found: {', '.join(names) or 'nothing'}")
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
        raise corrupt(path, f"not a .npz file of plain arrays: {error}") from None


def _check_lengths(path: Path, arrays: Arrays) -> None:
    for part in ("train", "test"):
        rows = len(arrays[f"x_{part}"]) if arrays[f"x_{part}"].ndim else 0
        if arrays[f"x_{part}"].size == 0:
            raise corrupt(path, f"x_{part} is empty (shape {arrays[f'x_{part}'].shape})")
        for key in (f"y_{part}", f"user_{part}"):
            if key in arrays and arrays[key].shape not in ((rows,), (rows, 1)):
                raise corrupt(
                    path, f"{key} has shape {arrays[key].shape}; ({rows},) expected, one per sample of x_{part}"
                )


def _inputs(path: Path, arrays: Arrays) -> tuple[bool, NDArray[Any], NDArray[Any]]:
    train, test = arrays["x_train"], arrays["x_test"]
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise corrupt(
            path,
            f"x_train is {train.dtype} of shape {train.shape} but x_test is {test.dtype} of shape {test.shape}",
        )
    image = train.ndim == 4 or (train.ndim == 3 and train.dtype == np.uint8)
    number = train.dtype.kind == "f" or train.dtype == np.uint8
    if train.ndim not in (2, 3, 4) or not (number or (train.ndim == 2 and train.dtype.kind in "iu")):
        raise corrupt(
            path,
            f"x_train is {train.dtype} of shape {train.shape}; accepted: uint8 images (N,H,W), uint8 or float "
            "images (N,H,W,C) or (N,C,H,W), numbers (N,F), float windows (N,steps,channels)",
        )
    return image, _stored(path, "x_train", train, image), _stored(path, "x_test", test, image)


def _stored(path: Path, key: str, x: NDArray[Any], image: bool) -> NDArray[Any]:
    """Channels first; float32, except uint8 images."""
    if not image or x.dtype != np.uint8:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        check_finite(path, key, x)
    if image and x.ndim == 3:
        x = x[:, None]
    elif image and (x.shape[3] in (1, 3) or x.shape[3] <= 4 < x.shape[1]):
        x = x.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(x)


def _moments(x: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, computed in chunks to avoid a float copy of all data."""
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    total = squares = np.zeros(x.shape[1])
    for start in range(0, len(x), _CHUNK):
        chunk = x[start : start + _CHUNK].astype(np.float64) / scale
        total = total + chunk.sum(axis=(0, 2, 3))
        squares = squares + np.square(chunk).sum(axis=(0, 2, 3))
    count = x.size / x.shape[1]
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
    deviation[deviation < 1e-12] = 1.0  # a constant channel is centred, not scaled
    return tuple(mean.tolist()), tuple(deviation.tolist())


def _labels(path: Path, train: NDArray[Any], test: NDArray[Any]) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    for key, values in (("y_train", train), ("y_test", test)):
        if values.dtype.kind not in "iu":
            raise corrupt(path, f"{key} is {values.dtype}; integer class labels expected")
    known, y = np.unique(train.reshape(-1), return_inverse=True)
    test = test.reshape(-1)
    unseen = ~np.isin(test, known)
    if unseen.any():
        first = int(np.argmax(unseen))
        raise corrupt(path, f"y_test[{first}] is {test[first]}, a label missing from y_train")
    return len(known), y.astype(np.int64), np.searchsorted(known, test).astype(np.int64)


def _users(path: Path, arrays: Arrays) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    for key in OPTIONAL:
        if key in arrays and arrays[key].dtype.kind not in "iuUS":
            raise corrupt(path, f"{key} is {arrays[key].dtype}; integers or strings expected")
    if "user_train" not in arrays:
        return None, None
    test = arrays["user_test"].reshape(-1) if "user_test" in arrays else None
    return dense_users(arrays["user_train"].reshape(-1), test)
