"""UCI activity recordings."""

from pathlib import Path

import pytest

from cabafl.data import load
from cabafl.errors import UserError


def write_activity(folder: Path, **replaced: str) -> None:
    for part, rows, people in (("train", 4, "7\n7\n1\n30\n"), ("test", 2, "2\n7\n")):
        (folder / part).mkdir(parents=True)
        files = {
            "X": "\n".join("  " + " ".join(f"{(row - 1) / 4: .7e}" for _ in range(561)) for row in range(rows)),
            "y": "\n".join(str(1 + 5 * (row % 2)) for row in range(rows)) + "\n",
            "subject": people,
        }
        for name, content in files.items():
            (folder / part / f"{name}_{part}.txt").write_text(replaced.get(f"{name}_{part}", content))


@pytest.mark.parametrize("inner", ["", "UCI HAR Dataset"])
def test_activity(tmp_path: Path, inner: str) -> None:
    write_activity(tmp_path / inner)
    data = load("activity", root=tmp_path)
    assert (data.kind, data.classes, data.input_shape) == ("vector", 6, (561,))
    assert data.inputs(data.train.x)[:, 0].tolist() == [-0.25, 0.0, 0.25, 0.5]
    assert data.train.y.tolist() == [0, 5, 0, 5]
    assert data.train.users is not None
    assert data.train.users.tolist() == [1, 1, 0, 2]
    assert data.test.users is not None
    assert data.test.users.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("X_train", "1 2 3\n", "561 features"),
        ("X_train", "", "empty"),
        ("X_train", "1 2\n1\n", "X_train"),
        ("X_test", " ".join(["nan"] * 561) + "\n" + " ".join(["0"] * 561), "is nan"),
        ("y_train", "1\n2\n", "4 lines"),
        ("y_train", "1\n2\n3\n7\n", r"accepted: 0\.\.5"),
        ("subject_test", "1\nx\n", "subject_test"),
    ],
)
def test_broken_activity_files(tmp_path: Path, file: str, content: str, reason: str) -> None:
    write_activity(tmp_path, **{file: content})
    with pytest.raises(UserError, match=reason) as caught:
        load("activity", root=tmp_path)
    assert f"{file}.txt" in str(caught.value)
