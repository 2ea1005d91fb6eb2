"""UCI human activity recognition: 561 smartphone features per window, six activities, thirty people."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cabafl.data.dataset import Dataset, Split
from cabafl.data.files import check_finite, class_numbers, corrupt, dense_users, missing, read_table

ACTIVITIES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
FEATURES, CLASSES = 561, len(ACTIVITIES)
INNER = "UCI HAR Dataset"


def read(folder: Path) -> Dataset:
    """``folder`` contains train/ and test/, or the folder `UCI HAR Dataset`. Features are not rescaled (-1..1)."""
    base = folder / INNER if (folder / INNER).is_dir() else folder
    x, y, subjects = _part(base, "train")
    test_x, test_y, test_subjects = _part(base, "test")
    users, test_users = dense_users(subjects, test_subjects)
    train = Split(torch.from_numpy(x), torch.from_numpy(y), users)
    test = Split(torch.from_numpy(test_x), torch.from_numpy(test_y), test_users)
    return Dataset("activity", "vector", train, test, CLASSES, class_names=ACTIVITIES)


def _part(base: Path, part: str) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    paths = {kind: base / part / f"{kind}_{part}.txt" for kind in ("X", "y", "subject")}
    for path in paths.values():
        if not path.is_file():
            raise missing("activity", path)
    x = read_table(paths["X"], np.float32)
    if x.shape[1] != FEATURES:
        raise corrupt(paths["X"], f"{FEATURES} features per line expected, found {x.shape[1]}")
    check_finite(paths["X"], "line and feature ", x)
    y = class_numbers(paths["y"], _column(paths["y"], len(x)) - 1, CLASSES)
    return x, y, _column(paths["subject"], len(x))


def _column(path: Path, rows: int) -> NDArray[Any]:
    values = read_table(path, np.int64)
    if values.shape != (rows, 1):
        raise corrupt(path, f"{rows} lines with one number expected, found shape {values.shape}")
    return values[:, 0]
