"""Plain arrays as text, for tasks that predict symbols: ``x`` has windows of symbol numbers (N, steps), ``y`` the
symbol after each window (N,), or one for each step (N, steps). Other inputs are read as for any task.

There are as many symbols as ``class_names``, or else up to the largest number that occurs.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cabafl.data.arrays import TEST, TRAIN, Arrays, Complaint, check_lengths, dataset_of, users_of
from cabafl.data.dataset import Dataset, Split

MOST_SYMBOLS = 1_000_000


def text_dataset(name: str, arrays: Arrays, complain: Complaint, of_test: bool = False) -> Dataset:
    """The data set of such arrays; ``of_test``: only the symbols of the test samples count."""
    if not is_text(arrays["x_test"]):
        return dataset_of(name, arrays, complain)
    check_lengths(arrays, complain)
    found = {key: symbols(key, arrays[key], complain) for key in (*TRAIN, *TEST) if key in arrays}
    strange = next((key for key in ("mean", "deviation", "feature_names") if key in arrays), None)
    if strange is not None:
        raise complain(f"{strange}: text has none; accepted: class_names")
    names = tuple(str(each) for each in arrays.get("class_names", np.array([])).reshape(-1))
    count = len(names) or max(int(values.max()) for key, values in found.items() if key in TEST or not of_test) + 1
    if not 2 <= count <= MOST_SYMBOLS or len(set(names)) != len(names):
        raise complain(f"{count:,} symbols; accepted: 2 to {MOST_SYMBOLS:,} different ones")
    for key, values in found.items():
        if values.max() >= count:
            raise complain(f"{key} has the symbol {values.max()}; accepted: 0 to {count - 1}")
    for part in ("train", "test"):
        x, y = found.get(f"x_{part}", found["x_test"]), found.get(f"y_{part}", found["y_test"])
        if x.shape[1:] != found["x_test"].shape[1:] or y.shape[1:] not in ((), x.shape[1:]):
            raise complain(
                f"x_{part} has shape {x.shape} and y_{part} {y.shape}; accepted: (N, {found['x_test'].shape[1]}) and "
                "(N,), or one symbol for each step"
            )
    users, test_users = users_of(arrays, complain)
    test = _split(found["x_test"], found["y_test"], count, test_users)
    train = _split(found["x_train"], found["y_train"], count, users) if "x_train" in found else None
    nothing = test.select(torch.zeros(0, dtype=torch.int64))
    return Dataset(name, "text", nothing if train is None else train, test, count, class_names=names)


def is_text(x: NDArray[Any]) -> bool:
    """Whether these are windows of symbols."""
    return x.ndim == 2 and x.dtype.kind in "iu"


def symbols(key: str, values: NDArray[Any], complain: Complaint) -> NDArray[np.int64]:
    """Numbers of symbols; ``key`` tells windows (x) from what follows them."""
    dimensions = (2,) if key[0] == "x" else (1, 2)
    if values.ndim == 2 and values.shape[1] == 1 and key[0] == "y":
        values = values.reshape(-1)
    if values.dtype.kind not in "iu" or values.ndim not in dimensions or values.min() < 0:
        shape = "(N, steps)" if key[0] == "x" else "(N,) or (N, steps)"
        raise complain(
            f"{key} is {values.dtype} of shape {values.shape}; accepted for text: numbers of symbols, integers from 0, "
            f"{shape}"
        )
    return values.astype(np.int64)


def _split(x: NDArray[np.int64], y: NDArray[np.int64], count: int, users: torch.Tensor | None) -> Split:
    stored = x.astype(np.uint8 if count <= 256 else np.int32)
    return Split(torch.from_numpy(np.ascontiguousarray(stored)), torch.from_numpy(y), users)
