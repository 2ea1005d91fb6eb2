"""Folders of pictures: which folders are classes, which are parts, and what is left out."""

from pathlib import Path

import pytest
from PIL import Image

from cabafl.data.pictures import PictureOptions, picture_arrays
from cabafl.errors import UserError


def make(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (3, 3), 7).save(folder / path)
    return folder


@pytest.mark.parametrize(
    ("train", "test"), [("train", "test"), ("train", "val"), ("Training", "Validation"), ("train", "valid")]
)
def test_folders_for_training_and_testing_are_not_classes(train: str, test: str, tmp_path: Path) -> None:
    make(tmp_path, f"{train}/cat/1.png", f"{train}/dog/1.png", f"{test}/cat/2.png", f"{test}/dog/2.png")
    notes: list[str] = []
    found = picture_arrays(tmp_path, PictureOptions(), notes)
    assert found["class_names"].tolist() == ["cat", "dog"]
    assert (found["y_train"].tolist(), found["y_test"].tolist(), notes) == (["cat", "dog"], ["cat", "dog"], [])


def test_what_is_left_out_is_noted(tmp_path: Path) -> None:
    make(tmp_path, *(f"{part}/{name}/1.png" for part in ("train", "val", "test") for name in ("cat", "dog")))
    make(tmp_path, "train/loose.png")
    notes: list[str] = []
    assert len(picture_arrays(tmp_path, PictureOptions(), notes)["x_test"]) == 2
    assert notes == [
        "left out: val; test is for testing",
        f"left out, in no folder of a class: 1 images in {tmp_path}/train",
    ]


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    make(tmp_path, "bus/1.png", "train/1.png")
    assert picture_arrays(tmp_path, PictureOptions(), [])["class_names"].tolist() == ["bus", "train"]


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        (["train/cat/1.png", "train/dog/1.png"], "folders train: accepted: one per class, or train and test"),
        (["train/cat/1.png", "holdout/cat/1.png"], "folders holdout, train: accepted: one per class, or train and"),
        (["test/cat/1.png", "test/dog/1.png"], "folders test: accepted"),
        (["train/cat/1.png", "test/cat/1.png", "more/cat/1.png"], "folders more, test, train: accepted"),
    ],
)
def test_folders_that_are_only_partly_split_are_refused(paths: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        picture_arrays(make(tmp_path, *paths), PictureOptions(), [])


def test_a_class_without_pictures_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.png", "dog/1.png")
    (tmp_path / "__MACOSX").mkdir()
    with pytest.raises(UserError, match=r"__MACOSX cannot be used: no images in it; accepted: files with .png"):
        picture_arrays(tmp_path, PictureOptions(), [])


@pytest.mark.parametrize("pattern", [r"cat/(\d+)?", r"cat/(\d*)", r"(x)|cat"])
def test_every_picture_has_a_user(pattern: str, tmp_path: Path) -> None:
    make(tmp_path, "cat/1.png", "cat/a.png")
    with pytest.raises(UserError, match=r"^--user = .*: finds no user in cat/.*; accepted: a pattern whose first"):
        picture_arrays(tmp_path, PictureOptions(pattern), [])
