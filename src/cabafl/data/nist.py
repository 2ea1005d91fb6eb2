"""NIST Special Database 19 to FEMNIST, by LEAF's rules.

The same images are published twice: in by_class.zip their folders name the character (its ASCII code in hexadecimal),
in by_write.zip the writer. An image of one archive is found in the other by its bytes. It is 128x128 and black and
white; it is converted to grey levels and reduced to 28x28.
"""

import hashlib
import io
import string
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cabafl.data.files import one_line
from cabafl.data.transfer import Progress, SourceError

CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase
BY_CLASS, BY_WRITE = "by_class.zip", "by_write.zip"
SIDE = 28
_REPORT_EVERY = 2000  # images

Entry = tuple[PurePosixPath, bytes]


def samples(
    by_class: Path, by_write: Path, report: Progress
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[Any]]:
    """Images, class numbers and writers of all images that both archives have."""
    numbers: dict[bytes, int] = {}
    for path, content in _images(by_class, report):
        number = _class_of(path)
        if number is not None:
            numbers.setdefault(hashlib.md5(content, usedforsecurity=False).digest(), number)
    x, y, writers = [], [], []
    for path, content in _images(by_write, report):
        found = numbers.get(hashlib.md5(content, usedforsecurity=False).digest())
        if found is not None and len(path.parts) == 5:  # by_write/hsf_0/f0000_14/d0000_14/d0000_14_00000.png
            x.append(_reduced(content))
            y.append(found)
            writers.append(path.parts[2])
    if not x:
        raise SourceError(f"{by_class.name} and {by_write.name} have no images in common")
    return np.stack(x), np.array(y), np.array(writers)


def _class_of(path: PurePosixPath) -> int | None:
    """The class of by_class/4a/hsf_0/hsf_0_00000.png; None for the folders that repeat images for training."""
    if len(path.parts) != 4 or "hsf" not in path.parts[2]:
        return None
    try:
        return CLASSES.index(chr(int(path.parts[1], 16)))
    except ValueError:
        return None


def _images(archive: Path, report: Progress) -> Iterator[Entry]:
    """All PNG files of an archive, in the order of their names; they are not unpacked to disk."""
    try:
        with zipfile.ZipFile(archive) as content:
            members = sorted((m for m in content.infolist() if m.filename.endswith(".png")), key=lambda m: m.filename)
            done, total = 0, sum(member.compress_size for member in members)
            for number, member in enumerate(members):
                yield PurePosixPath(member.filename), content.read(member)
                done += member.compress_size
                if number % _REPORT_EVERY == 0 or number == len(members) - 1:
                    report(f"reading {archive.name}", done, total)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise SourceError(f"{archive.name} cannot be read: {one_line(error)}") from None


def _reduced(content: bytes) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as picture:
            grey = picture.convert("L")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise SourceError(f"an image cannot be decoded: {one_line(error)}") from None
    grey.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    if grey.size != (SIDE, SIDE):
        raise SourceError(f"an image is not square: reduced to {grey.size[0]}x{grey.size[1]}, expected {SIDE}x{SIDE}")
    return np.asarray(grey)
