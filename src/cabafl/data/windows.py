"""Time series in a table, one row per step, as windows of steps."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cabafl.data.arrays import Complaint

if TYPE_CHECKING:
    import pandas as pd

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class WindowOptions:
    """``steps`` rows make a sample. A window begins every ``stride`` rows, and leaves neither its recording nor its
    class."""

    steps: int
    stride: int
    series: str | None = None  # the column that tells recordings apart; None: one per user, or only one
    time: str | None = None  # the column to sort the rows of a recording by; None: they are in order


def windowed(
    frame: "pd.DataFrame",
    whole: Arrays,
    how: WindowOptions,
    test: NDArray[np.bool_] | None,
    share: float,
    complain: Complaint,
) -> list[Arrays]:
    """The windows for training and for testing. A window has one class; a number to predict is that of its last step.

    For testing are the rows ``test``, or the last ``share`` of each recording, so that no window is partly in both.
    """
    order = _in_order(frame, how, complain)
    owner = _recordings(frame, whole, how)
    found: tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]] = [], []
    for recording in range(int(owner.max()) + 1):
        rows = order[owner[order] == recording]
        end = len(rows) - int(share * len(rows) + 0.5)
        pieces = (rows[:end], rows[end:]) if test is None else (rows[~test[rows]], rows[test[rows]])
        for windows, piece in zip(found, pieces, strict=True):
            for stretch in _stretches(whole["y"], piece):
                starts = range(0, len(stretch) - how.steps + 1, how.stride)
                windows += [stretch[start : start + how.steps] for start in starts]
    parts: list[Arrays] = []
    for name, windows in zip(("training", "test"), found, strict=True):
        if not windows:
            raise complain(f"no {name} window of {how.steps} steps with one label; accepted: shorter windows")
        index = np.stack(windows)
        part: Arrays = {key: whole[key][index[:, -1]] for key in ("y", "user") if key in whole}
        parts.append({"x": whole["x"][index], **part})
    return parts


def _in_order(frame: "pd.DataFrame", how: WindowOptions, complain: Complaint) -> NDArray[np.int64]:
    if how.time is None:
        return np.arange(len(frame))
    values = frame[how.time]
    if values.isna().any():
        raise complain(f"column {how.time!r} has missing values")
    if values.dtype.kind == "O":  # text in alphabetical order; numbers among it would not be in theirs
        import pandas as pd

        numbers = pd.to_numeric(values, errors="coerce").notna()
        if numbers.any():
            raise complain(
                f"column {how.time!r} has text and numbers (such as {values[numbers].iloc[0]!r}); one expected"
            )
        values = values.astype(str)
    return np.argsort(values.to_numpy(), kind="stable").astype(np.int64)


def _recordings(frame: "pd.DataFrame", whole: Arrays, how: WindowOptions) -> NDArray[np.int64]:
    """The recording of each row; recordings of different users are different ones."""
    keys = [] if how.series is None else [frame[how.series].astype(str).to_numpy().astype(np.str_)]
    keys += [whole["user"].astype(np.str_)] if "user" in whole else []
    owner = np.zeros(len(frame), np.int64)
    for key in keys:
        number = np.unique(key, return_inverse=True)[1].reshape(-1)
        owner = np.unique(owner * (int(number.max()) + 1) + number, return_inverse=True)[1].reshape(-1)
    return owner


def _stretches(y: NDArray[Any], rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Rows of one class after each other; numbers to predict have no classes."""
    if y.dtype.kind == "f" or not len(rows):
        return [rows]
    changes = np.flatnonzero(y[rows][1:] != y[rows][:-1]) + 1
    return np.split(rows, changes)
