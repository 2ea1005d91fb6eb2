"""Folders of images: the name of a folder is the class of the images in it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cabafl.data.files import corrupt
from cabafl.errors import UserError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
TRAIN, TEST = ("train", "training"), ("test", "testing", "val", "valid", "validation")  # of both, the first counts


@dataclass(frozen=True)
class PictureOptions:
    """``user``: a regular expression for the path of an image; its first group, or all it matches, is the user.
    ``size``: (width, height) to scale all images to; None: they have one size."""

    user: str | None = None
    size: tuple[int, int] | None = None


def picture_arrays(folder: Path, how: PictureOptions, notes: list[str]) -> dict[str, NDArray[Any]]:
    """``x_train``, ``y_train``, ``user_train`` and ``class_names`` of ``folder/CLASS/*``; also ``x_test`` and the like
    if there are ``folder/train/CLASS/*`` and ``folder/test/CLASS/*`` (or ``val``). What is left out is noted."""
    roots = _roots(folder, notes)
    classes = [path.name for path in _folders(roots["train"])]
    if not classes:
        raise corrupt(folder, "it has no folders; accepted: one folder of images per class")
    pictures = {part: _find(root, classes, notes) for part, root in roots.items()}
    arrays: dict[str, NDArray[Any]] = {"class_names": np.array(classes)}
    if how.user is not None:
        for part, found in pictures.items():
            arrays[f"user_{part}"] = np.array([_user(path.relative_to(folder), how.user) for path in found])
    pixels = _same_form({part: [_pixels(path, how) for path in found] for part, found in pictures.items()}, pictures)
    for part, found in pictures.items():
        names = [path.relative_to(roots[part]).parts[0] for path in found]
        arrays |= {f"x_{part}": pixels[part], f"y_{part}": np.array(names)}
    return arrays


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS and path.is_file()


def _roots(folder: Path, notes: list[str]) -> dict[str, Path]:
    """The folders of the training and the test images; only ``folder`` if it is not split. A folder with such a name
    and no folders in it is a class."""
    parts = {
        path.name.lower(): path for path in _folders(folder) if path.name.lower() in TRAIN + TEST and _folders(path)
    }
    if not parts:
        return {"train": folder}
    train, test = (next((parts[name] for name in names if name in parts), None) for names in (TRAIN, TEST))
    others = [path.name for path in _folders(folder) if path not in parts.values()]
    if train is None or test is None or others:
        found = ", ".join(path.name for path in _folders(folder))
        raise corrupt(
            folder, f"folders {found}: accepted: one per class, or train and test (or val) with one per class in each"
        )
    unused = [path.name for path in parts.values() if path not in (train, test)]
    notes += [f"left out: {', '.join(unused)}; {test.name} is for testing"] if unused else []
    return {"train": train, "test": test}


def _find(root: Path, classes: list[str], notes: list[str]) -> list[Path]:
    strange = [path.name for path in _folders(root) if path.name not in classes]
    if strange:
        raise corrupt(root, f"the class {strange[0]} is not among the training images")
    loose = sum(map(_is_picture, root.iterdir()))
    notes += [f"left out, in no folder of a class: {loose} images in {root}"] if loose else []
    found = {name: sorted(filter(_is_picture, (root / name).rglob("*"))) for name in classes}
    bare = next((name for name, pictures in found.items() if not pictures and (root / name).is_dir()), None)
    if bare is not None or not any(found.values()):
        where = root if bare is None else root / bare
        raise corrupt(where, f"no images in it; accepted: files with {', '.join(ENDINGS)}")
    return [path for pictures in found.values() for path in pictures]


def _pixels(path: Path, how: PictureOptions) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(path) as picture:
            if picture.mode.startswith(("I", "F")):
                raise corrupt(path, f"an image of type {picture.mode}; accepted: 8 bits a channel")
            shown = picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB")
            return np.asarray(shown if how.size is None else shown.resize(how.size))
    except (OSError, ValueError, TypeError, SyntaxError, Image.DecompressionBombError) as error:
        raise corrupt(path, f"not an image: {error}") from None


def _same_form(
    pixels: dict[str, list[NDArray[np.uint8]]], paths: dict[str, list[Path]]
) -> dict[str, NDArray[np.uint8]]:
    """Arrays of one size; grey images become RGB if there are RGB images beside them."""
    first = pixels["train"][0].shape[:2]
    for part, found in pixels.items():
        for path, each in zip(paths[part], found, strict=True):
            if each.shape[:2] != first:
                (h, w), (other_h, other_w) = first, each.shape[:2]
                raise corrupt(path, f"it is {other_w}x{other_h}, others are {w}x{h}; scale all with --size {w}x{h}")
    colour = any(each.ndim == 3 for found in pixels.values() for each in found)
    return {
        part: np.stack(
            [np.repeat(each[:, :, None], 3, axis=2) if colour and each.ndim == 2 else each for each in found]
        )
        for part, found in pixels.items()
    }


def _user(path: Path, pattern: str) -> str:
    found = re.search(pattern, path.as_posix())
    if found is None:
        raise UserError(f"--user = {pattern!r}: does not match {path.as_posix()}; accepted: a pattern for every image")
    user = found[1] if found.re.groups else found[0]
    if not user:
        raise UserError(
            f"--user = {pattern!r}: finds no user in {path.as_posix()}; accepted: a pattern whose first group is never "
            "empty"
        )
    return user
