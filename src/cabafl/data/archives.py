"""Archives that come from elsewhere: only plain files inside the archive are unpacked, and only those wanted."""

import gzip
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO

from cabafl.data.files import one_line
from cabafl.data.transfer import SourceError

LARGEST = 16 << 30  # bytes that one archive may unpack to
_BLOCK = 1 << 20
_UNREADABLE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    NotImplementedError,  # an unknown compression
    RuntimeError,  # an encrypted member
    ValueError,
)


def is_archive(path: Path) -> bool:
    """Whether the name is that of a .zip or .tar file, compressed or not."""
    return path.name.lower().endswith((".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"))


def unpack(archive: Path, folder: Path, wanted: Sequence[str], nested: bool = True) -> None:
    """Unpacks the members whose file name matches one of the patterns ``wanted`` to ``folder``.

    Also looks into wanted .zip files inside the archive. Raises `SourceError` for an archive with links, with paths
    that lead outside, or that cannot be read; an `OSError` is about the local disk.
    """
    try:
        if zipfile.is_zipfile(archive):
            _unzip(archive, folder, wanted)
        else:
            _untar(archive, folder, wanted)
    except _UNREADABLE as error:
        raise SourceError(f"{archive.name} cannot be unpacked: {one_line(error)}") from None
    if nested:
        for inner in sorted(folder.rglob("*.zip")):
            unpack(inner, inner.with_suffix(""), wanted, nested=False)
            inner.unlink()


def _unzip(archive: Path, folder: Path, wanted: Sequence[str]) -> None:
    with zipfile.ZipFile(archive) as content:
        members = content.infolist()
        for member in members:
            kind = member.external_attr >> 28  # of the Unix file mode; 0: not recorded
            _check(archive, member.filename, plain=kind in (0, 0o04, 0o10))
        chosen = [member for member in members if not member.is_dir() and _is_wanted(member.filename, wanted)]
        _check_size(archive, sum(member.file_size for member in chosen))
        for member in chosen:
            with content.open(member) as file:
                _write(file, folder / member.filename)


def _untar(archive: Path, folder: Path, wanted: Sequence[str]) -> None:
    total = 0
    with tarfile.open(archive) as content:
        for member in content:
            _check(archive, member.name, plain=member.isreg() or member.isdir())
            if member.isreg() and _is_wanted(member.name, wanted):
                total += member.size
                _check_size(archive, total)
                if (file := content.extractfile(member)) is not None:
                    _write(file, folder / member.name)


def _check(archive: Path, name: str, plain: bool) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or not plain:
        raise SourceError(f"{archive.name} rejected: {name!r} is a link or leads outside the archive")


def _check_size(archive: Path, size: int) -> None:
    if size > LARGEST:
        raise SourceError(f"{archive.name} rejected: it unpacks to more than {LARGEST >> 30} GiB")


def _is_wanted(name: str, wanted: Sequence[str]) -> bool:
    path = PurePosixPath(name)
    return "__MACOSX" not in path.parts and any(fnmatchcase(path.name, pattern) for pattern in wanted)


def _write(content: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(content, file, _BLOCK)
