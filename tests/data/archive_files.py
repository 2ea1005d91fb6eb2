"""Archives and small data sets in their published forms, for the tests of fetching."""

import io
import pickle
import stat
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cabafl.data import verify
from cabafl.data.verify import Census


def tar_of(*members: tarfile.TarInfo | tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def zip_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as content:
        for name, data in members.items():
            content.writestr(name, data)
    return buffer.getvalue()


def link(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info


def png(pixels: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def idx_file(values: Any) -> bytes:
    array = np.asarray(values, np.uint8)
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def cifar100_batch() -> bytes:
    """Two images, with the keys of Python 2 that the published files have."""
    return pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [1, 2], b"coarse_labels": [3, 4]})


CIFAR100_FILES = {f"cifar-100-python/{part}": cifar100_batch() for part in ("train", "test")}


def small_cifar100(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declares two images per part a complete CIFAR-100."""
    monkeypatch.setitem(verify.CENSUS, "cifar100", Census((0, 1, 1), (0, 1, 1)))


def activity_files(rows: int = 3) -> dict[str, bytes]:
    """The folder `UCI HAR Dataset` with person 1 for training and person 2 for testing."""
    files = {"UCI HAR Dataset/README.txt": b"notes", "UCI HAR Dataset/train/Inertial Signals/x.txt": b"left out"}
    for person, part in ((1, "train"), (2, "test")):
        lines = [" ".join([f"{row / 10:+.8e}"] * 561) for row in range(rows)]
        files[f"UCI HAR Dataset/{part}/X_{part}.txt"] = ("  " + "\n  ".join(lines) + "\n").encode()
        files[f"UCI HAR Dataset/{part}/y_{part}.txt"] = "".join(f"{row % 6 + 1}\n" for row in range(rows)).encode()
        files[f"UCI HAR Dataset/{part}/subject_{part}.txt"] = (f"{person}\n" * rows).encode()
        files[f"__MACOSX/UCI HAR Dataset/{part}/._X_{part}.txt"] = b"\x00\x05"
    return files


def fake_npm(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    folder.mkdir()
    npm = folder / "npm"
    npm.write_text(f"#!{sys.executable}\nimport sys, shutil\n{body}\n")
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))
