"""Plain arrays as a data set: x_train, y_train[, user_train], x_test, y_test[, user_test], whatever they come from.

Type and shape of ``x`` decide how it is read:

* images: uint8 (N, H, W), or integer or float (N, H, W, C) or (N, C, H, W). Standardised per channel with the mean and
  standard deviation of the training samples (integers, which are 0 to 255, are divided by 255 first).
* vectors: numbers (N, F), or float windows (N, steps, channels). Not rescaled.

``mean`` and ``deviation``, one number per channel or feature, replace this.

Type and shape of ``y`` decide what is learned: integers or text are classes, numbered in sorted order; floats, or rows
of several numbers, are targets and have no classes. ``class_names`` fixes the classes and their order.

Without ``x_train`` and ``y_train`` there are test samples only, for a server whose devices bring their own data.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cabafl.data.dataset import Dataset, Kind, Split
from cabafl.data.files import dense_users
from cabafl.errors import UserError

Arrays = Mapping[str, NDArray[Any]]
Complaint = Callable[[object], UserError]  # makes the error for data that cannot be used, from the reason
TRAIN, TEST = ("x_train", "y_train"), ("x_test", "y_test")
USERS = ("user_train", "user_test")
ABOUT = ("class_names", "feature_names", "mean", "deviation")
_CHUNK = 2048
_ACCEPTED = (
    "uint8 images (N,H,W), integer or float images (N,H,W,C) or (N,C,H,W), numbers (N,F), float windows "
    "(N,steps,channels)"
)


class Targets(NamedTuple):
    """What is to be learned: class numbers, or float32 targets if ``classes`` is 0."""

    train: NDArray[Any]
    test: NDArray[Any]
    classes: int = 0
    names: tuple[str, ...] = ()


def dataset_of(name: str, arrays: Arrays, complain: Complaint) -> Dataset:
    """The data set of the arrays named above; ``complain`` makes the error if they cannot be used."""
    check_lengths(arrays, complain)
    return from_targets(name, arrays, targets_of(arrays, complain), complain)


def from_targets(name: str, arrays: Arrays, targets: Targets, complain: Complaint) -> Dataset:
    """The data set of inputs, users and what is known about them in ``arrays``, with these targets."""
    kind, x, test_x = _inputs(arrays, complain)
    users, test_users = users_of(arrays, complain)
    train = Split(torch.from_numpy(x), torch.from_numpy(targets.train), users)
    test = Split(torch.from_numpy(test_x), torch.from_numpy(targets.test), test_users)
    mean, deviation = _normalisation(arrays, kind, x if len(x) else test_x, complain)
    features = _feature_names(arrays, x.shape[-1], complain) if kind == "vector" else ()
    return Dataset(name, kind, train, test, targets.classes, mean, deviation, targets.names, features)


def check_lengths(arrays: Arrays, complain: Complaint) -> None:
    """Raises an error unless every sample has a target and, where there are users, a user."""
    if ("x_train" in arrays) != ("y_train" in arrays):
        absent = "y_train" if "x_train" in arrays else "x_train"
        raise complain(f"missing {absent}; found: {', '.join(arrays)}")
    for part in ("train", "test"):
        if f"x_{part}" in arrays:
            keys = [key for key in ("x", "y", "user") if f"{key}_{part}" in arrays]
            check_part({key: arrays[f"{key}_{part}"] for key in keys}, complain, f"_{part}")


def check_part(part: Arrays, complain: Complaint, ending: str = "") -> None:
    """As `check_lengths`, of ``x``, ``y`` and perhaps ``user``; their names in errors have this ``ending``."""
    x, y, users = part["x"], part["y"], part.get("user")
    if x.size == 0 or x.ndim == 0:
        raise complain(f"x{ending} is empty or a single number (shape {x.shape}); accepted: {_ACCEPTED}")
    if y.shape[:1] != x.shape[:1] or y.ndim > 2 or y.size == 0:
        raise complain(
            f"y{ending} has shape {y.shape}; ({len(x)},) or ({len(x)}, targets) expected, one per sample of x{ending}"
        )
    if users is not None and users.shape not in ((len(x),), (len(x), 1)):
        raise complain(f"user{ending} has shape {users.shape}; ({len(x)},) expected, one per sample of x{ending}")
    if users is not None and users.dtype.kind not in "iuUS":
        raise complain(f"user{ending} is {users.dtype}; integers or strings expected")


def targets_of(arrays: Arrays, complain: Complaint) -> Targets:
    """The targets of ``y_train`` and ``y_test``; see the top of this file."""
    test = _column(arrays["y_test"])
    train = _column(arrays["y_train"]) if "y_train" in arrays else test[:0]
    kinds = _target_kind("y_train", train, complain), _target_kind("y_test", test, complain)
    if kinds[0] != kinds[1] or train.shape[1:] != test.shape[1:]:
        raise complain(
            f"y_train is {train.dtype} of shape {train.shape} but y_test is {test.dtype} of shape {test.shape}; "
            "accepted: integers, text or numbers in both"
        )
    if kinds[0] != "class":
        return Targets(_numbers(complain, "y_train", train), _numbers(complain, "y_test", test))
    known, names = _classes(arrays, train if len(train) else test, complain)
    numbered = _numbered(complain, "y_train", train, known), _numbered(complain, "y_test", test, known)
    return Targets(*numbered, len(known), names)


def _column(y: NDArray[Any]) -> NDArray[Any]:
    return y.reshape(-1) if y.ndim == 2 and y.shape[1] == 1 else y


def _target_kind(key: str, y: NDArray[Any], complain: Complaint) -> str:
    if y.dtype.kind == "f" or (y.ndim == 2 and y.dtype.kind in "iub"):
        return "number"
    if y.ndim == 1 and y.dtype.kind in "iubUS":
        return "class"
    raise complain(f"{key} is {y.dtype} of shape {y.shape}; accepted: integers or text (classes), or numbers (targets)")


def _numbers(complain: Complaint, key: str, y: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        y = np.ascontiguousarray(y, np.float32)
    check_finite_numbers(complain, key, y)
    return y


def _classes(arrays: Arrays, y: NDArray[Any], complain: Complaint) -> tuple[NDArray[Any], tuple[str, ...]]:
    """The labels in the order of their numbers, and the names of the classes, if they are not just these numbers."""
    given = arrays.get("class_names")
    if given is not None:
        names = tuple(str(each) for each in given.reshape(-1))
        if len(set(names)) != len(names) or not names:
            raise complain("class_names has no name, or one twice; accepted: a different name for each class")
        return (np.array(names) if y.dtype.kind in "US" else np.arange(len(names))), names
    known = np.unique(y.astype(np.str_) if y.dtype.kind == "S" else y)
    if len(known) < 2:
        raise complain(f"all labels are {known[0]}; accepted: at least two classes, or class_names with all of them")
    plain = known.dtype.kind in "iu" and np.array_equal(known, np.arange(len(known)))
    return known, () if plain else tuple(str(each) for each in known)


def _numbered(complain: Complaint, key: str, y: NDArray[Any], known: NDArray[Any]) -> NDArray[np.int64]:
    if y.dtype.kind == "S":
        y = y.astype(np.str_)
    order = np.argsort(known, kind="stable")
    place = np.minimum(np.searchsorted(known[order], y), len(known) - 1)
    strange = known[order][place] != y
    if strange.any():
        first = int(np.argmax(strange))
        few = ", ".join(str(each) for each in known[:5]) + (", ..." if len(known) > 5 else "")
        raise complain(f"{key}[{first}] is {y[first]}, a label missing from y_train or class_names (known: {few})")
    return order[place].astype(np.int64)


def _inputs(arrays: Arrays, complain: Complaint) -> tuple[Kind, NDArray[Any], NDArray[Any]]:
    test = arrays["x_test"]
    train = arrays.get("x_train", test[:0])
    if not len(train):
        kind, stored = stored_inputs("x_test", test, complain)
        return kind, stored[:0], stored
    (kind, stored), (test_kind, stored_test) = (
        stored_inputs(key, x, complain) for key, x in (("x_train", train), ("x_test", test))
    )
    if (kind, stored.dtype, stored.shape[1:]) != (test_kind, stored_test.dtype, stored_test.shape[1:]):
        raise complain(
            f"x_train is {train.dtype} of shape {train.shape} but x_test is {test.dtype} of shape {test.shape}; "
            "accepted: the same form in both"
        )
    return kind, stored, stored_test


def stored_inputs(key: str, x: NDArray[Any], complain: Complaint) -> tuple[Kind, NDArray[Any]]:
    """The kind of the samples, and the form they are kept in: channels first; float32, except uint8 images."""
    image = x.ndim == 4 or (x.ndim == 3 and x.dtype == np.uint8)
    if x.ndim not in (2, 3, 4) or not (x.dtype.kind == "f" or (x.ndim != 3 and x.dtype.kind in "iub") or image):
        raise complain(f"{key} is {x.dtype} of shape {x.shape}; accepted: {_ACCEPTED}")
    if image and x.dtype.kind != "f":
        x = bytes_of(key, x, complain)
    else:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        check_finite_numbers(complain, key, x)
    if image:
        x = x[:, None] if x.ndim == 3 else channels_first(x)
    return ("image" if image else "vector"), np.ascontiguousarray(x)


def channels_first(x: NDArray[Any]) -> NDArray[Any]:
    """Images (N, C, H, W). The channels are last if that dimension is 1 or 3, or up to 4 where the second is more, or
    if the other two are equal and larger: the sides of a square."""
    _, second, third, fourth = x.shape
    last = fourth in (1, 3) or fourth <= 4 < second or fourth < second == third
    return x.transpose(0, 3, 1, 2) if last else x


def bytes_of(key: str, x: NDArray[Any], complain: Complaint) -> NDArray[np.uint8]:
    """Integer pixels of any type as uint8."""
    if x.dtype.kind not in "iu" or (x.size and not 0 <= x.min() <= x.max() <= 255):
        found = f"from {x.min()} to {x.max()}" if x.dtype.kind in "iu" else f"of type {x.dtype}"
        raise complain(f"{key} has pixels {found}; accepted: integers from 0 to 255, or floating-point numbers")
    return x.astype(np.uint8, copy=False)


def _feature_names(arrays: Arrays, features: int, complain: Complaint) -> tuple[str, ...]:
    names = tuple(str(each) for each in arrays.get("feature_names", np.array([])).reshape(-1))
    if names and (len(names) != features or len(set(names)) != features):
        raise complain(f"feature_names has {len(set(names))} different names; accepted: {features}, one per feature")
    return names


def _normalisation(
    arrays: Arrays, kind: Kind, x: NDArray[Any], complain: Complaint
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    given = [arrays.get(key) for key in ("mean", "deviation")]
    if given[0] is None and given[1] is None:
        return moments(x) if kind == "image" else ((), ())
    channels = x.shape[1] if kind == "image" else x.shape[-1]
    for key, values in zip(("mean", "deviation"), given, strict=True):
        if values is None or values.dtype.kind not in "iuf" or values.size != channels or not _fits(values):
            found = "missing" if values is None else f"{values.dtype} of shape {values.shape}"
            raise complain(f"{key} is {found}; accepted: mean and deviation with {channels} finite numbers each")
    mean, deviation = (np.asarray(values, np.float64).reshape(-1) for values in given)
    if not (deviation >= np.finfo(np.float32).tiny).all():
        raise complain(f"deviation has {deviation.min()}; accepted: numbers above 0")
    return tuple(mean.tolist()), tuple(deviation.tolist())


def _fits(values: NDArray[Any]) -> bool:
    """Whether all numbers are finite, also as float32."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(values.astype(np.float32)).all())


def moments(x: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of images (N, C, H, W), or of each last entry of vectors; computed in
    chunks to avoid a float copy of all data."""
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    axis = 1 if x.ndim == 4 else x.ndim - 1
    others = tuple(each for each in range(x.ndim) if each != axis)
    total = squares = np.zeros(x.shape[axis])
    for start in range(0, len(x), _CHUNK):
        chunk = x[start : start + _CHUNK].astype(np.float64) / scale
        total = total + chunk.sum(axis=others)
        squares = squares + np.square(chunk).sum(axis=others)
    count = x.size / x.shape[axis]
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
    deviation[deviation < 1e-12] = 1.0  # a constant channel is centred, not scaled
    return tuple(mean.tolist()), tuple(deviation.tolist())


def check_finite_numbers(complain: Complaint, key: str, values: NDArray[Any]) -> None:
    """Rejects NaN and infinity: a single one would spread to every model."""
    finite = np.isfinite(values)
    if not finite.all():
        first = tuple(int(i) for i in np.unravel_index(int(np.argmin(finite)), values.shape))
        raise complain(f"{key}{list(first)} is {values[first]}; only finite numbers are accepted")


def users_of(arrays: Arrays, complain: Complaint) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Numbers of the users of the training and the test samples; None: they have none."""
    if "user_train" not in arrays:
        return None, None
    types = [arrays[key].dtype for key in USERS if key in arrays]
    if len({each.kind in "US" for each in types}) > 1:
        raise complain(f"user_train is {types[0]} but user_test is {types[1]}; accepted: integers or strings in both")
    test = arrays["user_test"].reshape(-1) if "user_test" in arrays else None
    return dense_users(arrays["user_train"].reshape(-1), test)
