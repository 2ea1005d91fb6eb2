"""Tables (pandas frames) as arrays: columns to learn, optionally one of users; all others are features."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cabafl.data.arrays import Complaint
from cabafl.rng import rng
from cabafl.validation import nearest

if TYPE_CHECKING:
    import pandas as pd

LABEL_NAMES = ("label", "labels", "y", "target", "class")  # of the column to learn, if none is named


@dataclass(frozen=True)
class Columns:
    """Which columns are what."""

    label: tuple[str, ...] = ()  # empty: the one of `LABEL_NAMES` that is there
    user: str | None = None
    features: tuple[str, ...] = ()  # empty: all other columns with numbers
    others: tuple[str, ...] = ()  # neither features nor anything else
    numbers: bool = False  # the label is a number to predict, not a class, also if it is an integer
    strict: bool = False  # columns without numbers are refused, not left out


def table_arrays(frame: "pd.DataFrame", columns: Columns, complain: Complaint) -> dict[str, NDArray[Any]]:
    """``x``, ``y``, ``user`` if there are users, and ``feature_names``, one row per row of the table."""
    frame = tidy(frame, complain)
    label = label_columns(frame, columns, complain)
    user = [] if columns.user is None else [columns.user]
    _check_names(frame, [*label, *columns.features, *columns.others, *user], complain)
    for names in (label, columns.features):
        _check_twice(names, complain)
    both = next((name for name in columns.features if name in label), None)
    if both is not None:
        raise complain(f"column {both!r} is to be learned and an input; accepted: one of both")
    features = list(columns.features) or feature_columns(frame, [*label, *columns.others, *user])
    if not features:
        raise complain(f"no column with numbers is left for the inputs; found: {', '.join(frame.columns)}")
    if columns.strict and not columns.features:
        _check_all_used(frame, [*label, *columns.others, *user, *features], complain)
    arrays = {
        "x": feature_arrays(frame, features, complain),
        "y": _targets(frame, label, columns.numbers, complain),
        "feature_names": np.array(features),
    }
    if columns.user is not None:
        arrays["user"] = _names(frame, columns.user, complain)
    return arrays


def feature_arrays(frame: "pd.DataFrame", features: Sequence[str], complain: Complaint) -> NDArray[np.float32]:
    """The columns of these names, in this order."""
    _check_names(frame, features, complain)
    return np.stack([_numbers(frame, name, complain) for name in features], axis=1)


def tidy(frame: "pd.DataFrame", complain: Complaint) -> "pd.DataFrame":
    """The frame with text as names, all different, and with columns of numbers that are kept as objects as numbers."""
    import pandas as pd

    if frame.columns.nlevels > 1:
        raise complain(f"its columns have {frame.columns.nlevels} levels; accepted: one name for each column")
    frame = frame.rename(columns=str)
    _check_twice([str(name) for name in frame.columns], complain)
    for name in frame.columns:
        if frame[name].dtype == object:
            known = frame[name].dropna()
            if len(known) and all(isinstance(each, Real | Decimal) for each in known):
                frame[name] = pd.to_numeric(frame[name].map(_plain))
    return frame


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) or (isinstance(value, int) and abs(value) >= 2**63) else value


def _check_names(frame: "pd.DataFrame", names: Sequence[str], complain: Complaint) -> None:
    for name in names:
        if name not in frame.columns:
            known = list(map(str, frame.columns))
            raise complain(f"there is no column {name!r}{nearest(name, known)}; found: {', '.join(known)}")


def _check_twice(names: Sequence[str], complain: Complaint) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise complain(f"column {name!r} is there twice; accepted: each column once")
        seen.add(name)


def _check_all_used(frame: "pd.DataFrame", used: Sequence[str], complain: Complaint) -> None:
    others = [repr(name) for name in frame.columns if name not in used]
    if others:
        raise complain(
            f"no numbers in column {', '.join(others)}; accepted: numbers as inputs: encode such columns, or drop them"
        )


def feature_columns(frame: "pd.DataFrame", without: Sequence[str]) -> list[str]:
    """The other columns that have numbers."""
    return [str(name) for name in frame.columns if name not in without and frame[name].dtype.kind in "iufb"]


def label_columns(frame: "pd.DataFrame", columns: Columns, complain: Complaint) -> tuple[str, ...]:
    """The columns to learn: those that are named, or the one with a usual name."""
    if columns.label:
        return columns.label
    found = [name for name in LABEL_NAMES if name in frame.columns]
    if len(found) > 1:
        raise complain(f"columns {' and '.join(found)} are both there; name the one to learn")
    if not found:
        raise complain(
            f"no column is called {', '.join(LABEL_NAMES)}; name the one to learn: {', '.join(map(str, frame.columns))}"
        )
    return (found[0],)


def _targets(frame: "pd.DataFrame", label: Sequence[str], numbers: bool, complain: Complaint) -> NDArray[Any]:
    if len(label) > 1:
        return np.stack([_numbers(frame, name, complain) for name in label], axis=1)
    [name] = label
    if frame[name].dtype.kind == "f" or numbers:
        return _numbers(frame, name, complain)
    return _names(frame, name, complain)


def _numbers(frame: "pd.DataFrame", name: str, complain: Complaint) -> NDArray[np.float32]:
    if frame[name].dtype.kind not in "iufb":
        raise complain(f"column {name!r} has text or dates (such as {frame[name].iloc[0]!r}); numbers expected")
    _check_complete(frame, name, complain)
    with np.errstate(over="ignore"):
        return frame[name].to_numpy(dtype=np.float32)


def _names(frame: "pd.DataFrame", name: str, complain: Complaint) -> NDArray[Any]:
    """Integers as they are, everything else as text."""
    _check_complete(frame, name, complain)
    values = frame[name]
    if values.dtype.kind == "f":
        raise complain(f"column {name!r} has fractional numbers, which name nothing; integers or text expected")
    if values.dtype.kind in "iu":
        return values.to_numpy(np.int64 if values.dtype.kind == "i" else np.uint64)
    return np.array([str(each) for each in values])


def _check_complete(frame: "pd.DataFrame", name: str, complain: Complaint) -> None:
    gaps = int(frame[name].isna().sum())
    if gaps:
        first = int(np.argmax(frame[name].isna().to_numpy()))
        raise complain(
            f"column {name!r} has {gaps} missing values, the first in row {first + 1}; fill or drop them (words such "
            "as NA or None count as missing)"
        )


def held_out(
    count: int, users: NDArray[Any] | None, share: float, labels: NDArray[Any] | None = None
) -> NDArray[np.bool_]:
    """Which of ``count`` samples are for testing: ``share`` of each user's, or of all. Drawn once for all seeds.

    Of each of the ``labels`` one sample at least is for training.
    """
    test = np.zeros(count, bool)
    owner = np.zeros(count, np.int64) if users is None else np.unique(users, return_inverse=True)[1].reshape(-1)
    order = np.argsort(owner, kind="stable")
    for user, rows in enumerate(np.split(order, np.cumsum(np.bincount(owner))[:-1])):
        chosen = int(share * len(rows) + 0.5)
        test[rows[rng(0, "test share", user).permutation(len(rows))[:chosen]]] = True
    if labels is not None and labels.ndim == 1 and labels.dtype.kind in "iubUS":
        found, first = np.unique(labels, return_index=True)
        test[first[~np.isin(found, labels[~test])]] = False
    return test
