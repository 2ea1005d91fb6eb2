"""Data handed in from Python, ``simulate(..., data=...)``, or returned by the user's own function.

Accepted are a `Dataset`; a mapping of arrays with the names of a .npz file; or training and test samples ``(train,
test)``, each a torch dataset, a pandas frame or arrays ``(x, y)`` or ``(x, y, users)``. One of these alone is enough
with ``data.test_share``.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from cabafl.data.arrays import ABOUT, TEST, TRAIN, USERS, Complaint, check_part, dataset_of
from cabafl.data.catalogue import HubOptions
from cabafl.data.dataset import Dataset
from cabafl.data.files import failure, one_line
from cabafl.data.fingerprint import fingerprint
from cabafl.data.tables import Columns, feature_arrays, held_out, label_columns, table_arrays, tidy
from cabafl.data.text import text_dataset
from cabafl.errors import UserError
from cabafl.names import GIVEN

Part = dict[str, NDArray[Any]]
_ENTRIES = (int, float, str, list, tuple, np.generic, np.ndarray, torch.Tensor)  # of lists that stand for arrays
ACCEPTED = (
    "a mapping of arrays x_train, y_train[, user_train], x_test, y_test; or (train, test), each a torch dataset, a "
    "pandas frame, (x, y) or (x, y, users); or one of these with data.test_share"
)


def given_name(dataset: Dataset) -> str:
    """The name of such data in an experiment: it tells whether they are the same."""
    return f"{GIVEN}:{fingerprint(dataset)}"


def dataset_from(data: Any, options: HubOptions, complain: Complaint) -> Dataset:
    """The data set of whatever was handed in; ``complain`` makes the error if it cannot be used."""
    if isinstance(data, Dataset):
        return data
    make = text_dataset if options.tokens else dataset_of
    if isinstance(data, Mapping):
        return make(GIVEN, _named_arrays(data, complain), complain)
    if isinstance(data, tuple | list) and len(data) == 2 and all(_is_part(each) for each in data):
        return make(GIVEN, _joined(*_pair(data[0], data[1], options, complain)), complain)
    if not _is_part(data):
        raise complain(f"it is a {type(data).__name__}; accepted: {ACCEPTED}")
    if options.test_share is None:
        raise complain("there are no test samples; accepted: (train, test), or data.test_share to cut some off")
    whole = _part(data, options, complain)
    check_part(whole, complain)
    rows = held_out(len(whole["y"]), whole.get("user"), options.test_share, whole["y"])
    if rows.all() or not rows.any():
        raise UserError(f"data.test_share = {options.test_share}: leaves no training or no test samples")
    train, test = ({key: _rows(key, values, chosen) for key, values in whole.items()} for chosen in (~rows, rows))
    return make(GIVEN, _joined(train, test), complain)


def renamed(dataset: Dataset, name: str) -> Dataset:
    """A copy with another name."""
    return replace(dataset, name=name)


def is_pair(data: Any) -> bool:
    """Whether these are arrays ``(x, y)`` or ``(x, y, users)``."""
    return isinstance(data, tuple | list) and len(data) in (2, 3) and all(_is_values(each) for each in data)


def array_of(value: Any, key: str, complain: Complaint) -> NDArray[Any]:
    """An array, tensor or list as an array of numbers or text."""
    try:
        if isinstance(value, list) and value and all(isinstance(each, torch.Tensor) for each in value):
            value = torch.stack(value)
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().resolve_conj().resolve_neg()
            value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            raise ValueError("a masked array with gaps; accepted: one without")
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise complain(f"{key} is a {type(value).__name__} that is no array: {one_line(error)}") from None
    if array.dtype == object and array.size and all(isinstance(each, str) for each in array.flat):
        array = array.astype(np.str_)
    if array.dtype == object and array.size and all(isinstance(each, Real) for each in array.flat):
        array = np.array(array.tolist())
    if array.dtype == object and array.ndim == 0:
        raise complain(f"{key} is a {type(value).__name__}; accepted: arrays, tensors or lists")
    return array


def _named_arrays(data: Mapping[Any, Any], complain: Complaint) -> Part:
    known = (*TRAIN, *TEST, *USERS, *ABOUT)
    strange = [str(key) for key in data if key not in known]
    absent = [key for key in TEST if data.get(key) is None]
    if strange or absent:
        what = f"unknown {', '.join(strange)}" if strange else f"missing {', '.join(absent)}"
        raise complain(f"{what}; accepted: {', '.join(known)}")
    given = {key: data[key] for key in known if data.get(key) is not None}
    if any(is_frame(given.get(key)) for key in ("x_train", "x_test")):
        given |= _frames_of_inputs(given, complain)
    return {key: array_of(value, key, complain) for key, value in given.items()}


def _frames_of_inputs(given: Mapping[str, Any], complain: Complaint) -> Part:
    """Inputs that are frames, as arrays; columns are matched by name, and those of the first frame count."""
    found: Part = {}
    names: list[str] = []
    for key in ("x_train", "x_test"):
        if is_frame(given.get(key)):
            frame = tidy(given[key], complain)
            names = names or list(frame.columns)
            strange = next((name for name in frame.columns if name not in names), None)
            if strange is not None:
                raise complain(f"{key} has a column {strange!r}, x_train has not; accepted: the same columns in both")
            found[key] = feature_arrays(frame, names, lambda reason, key=key: complain(f"{key}: {reason}"))  # type: ignore[misc]
    return {"feature_names": np.array(names), **found} if "feature_names" not in given else found


def _is_part(data: Any) -> bool:
    return isinstance(data, TorchDataset) or is_frame(data) or is_pair(data)


def is_frame(data: Any) -> bool:
    """Whether this is a pandas frame."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def is_row(data: Any) -> bool:
    """Whether this is a pandas series: a row or a column of a frame."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.Series)


def _is_values(data: Any) -> bool:
    if isinstance(data, torch.Tensor | np.ndarray):
        return True
    plain = isinstance(data, list) and (not data or isinstance(data[0], _ENTRIES))
    return plain or is_row(data)


def _pair(train: Any, test: Any, options: HubOptions, complain: Complaint) -> tuple[Part, Part]:
    """Training and test samples; the columns of two frames are matched by their names."""
    found = _part(train, options, complain)
    if not (is_frame(train) and is_frame(test)):
        return found, _part(test, options, complain)

    def about_test(reason: object) -> UserError:
        return complain(f"test frame: {reason}")

    known = tidy(train, complain).columns
    strange = next((name for name in tidy(test, about_test).columns if name not in known), None)
    if strange is not None:
        raise about_test(f"column {strange!r} is not in the training frame; accepted: the same columns in both")
    label = label_columns(train.rename(columns=str), _columns(options), complain)
    same = replace(_columns(options), label=label, features=tuple(found["feature_names"].tolist()))
    return found, table_arrays(test, same, about_test)


def _columns(options: HubOptions) -> Columns:
    label = () if options.label_column is None else (options.label_column,)
    return Columns(label, options.user_column, strict=True)


def _part(data: Any, options: HubOptions, complain: Complaint) -> Part:
    if is_frame(data):
        return table_arrays(data, _columns(options), complain)
    columns = _items(data, complain) if isinstance(data, TorchDataset) else data
    return {key: array_of(values, key, complain) for key, values in zip(("x", "y", "user"), columns, strict=False)}


def _items(data: Any, complain: Complaint) -> list[NDArray[Any]]:
    """The samples ``(x, y)`` or ``(x, y, user)`` of a torch dataset, one after the other."""
    items = _fetched(data, complain)
    if not items:
        raise complain("a torch dataset is empty")
    if not all(isinstance(item, tuple | list) and len(item) == len(items[0]) and len(item) in (2, 3) for item in items):
        raise complain("a torch dataset must give (x, y) or (x, y, user) for every sample")
    columns = []
    for key, values in zip(("x", "y", "user"), zip(*items, strict=True), strict=False):
        arrays = [array_of(value, key, complain) for value in values]
        if len({array.shape for array in arrays}) > 1:
            raise complain(f"a torch dataset has {key} of different shapes, such as {arrays[0].shape}; one expected")
        columns.append(np.stack(arrays))
    return columns


def _fetched(data: Any, complain: Complaint) -> list[Any]:
    try:
        return list(data) if isinstance(data, IterableDataset) else [data[place] for place in range(len(data))]
    except Exception as error:  # the user's code may raise anything
        raise complain(f"a torch dataset fails: {failure(error)}") from None


def _joined(train: dict[str, NDArray[Any]], test: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays of both parts under their names in a .npz file."""
    about = {key: values for key, values in train.items() if key in ABOUT}
    named = {f"{key}_train": values for key, values in train.items() if key not in ABOUT}
    return about | named | {f"{key}_test": values for key, values in test.items() if key not in ABOUT}


def _rows(key: str, values: NDArray[Any], chosen: NDArray[np.bool_]) -> NDArray[Any]:
    return values if key in ABOUT else values[chosen]
