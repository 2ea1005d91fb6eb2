"""Unpacking archives of unknown origin."""

import io
import zipfile
from pathlib import Path

import pytest

from cabafl.data import archives
from cabafl.data.archives import is_archive, unpack
from cabafl.data.transfer import SourceError
from tests.data.archive_files import tar_of, zip_of


def unpacked(
    tmp_path: Path, content: bytes, name: str = "a.zip", wanted: tuple[str, ...] = ("*.txt", "*.zip")
) -> set[str]:
    archive = tmp_path / name
    archive.write_bytes(content)
    unpack(archive, tmp_path / "out", wanted)
    return {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}


def test_wanted_files_of_an_archive_and_of_one_inside_it(tmp_path: Path) -> None:
    inner = zip_of({"deep/c.txt": b"3", "deep/d.bin": b"4", "e.zip": zip_of({"f.txt": b"never"})})
    content = zip_of({"a.txt": b"1", "b.bin": b"2", "in side.zip": inner, "__MACOSX/a.txt": b"x"})
    assert unpacked(tmp_path, content) == {"a.txt", "in side/deep/c.txt", "in side/e.zip"}  # one level is looked into


def linked() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as content:
        info = zipfile.ZipInfo("a.txt")
        info.external_attr = 0o120777 << 16
        content.writestr(info, "/etc/passwd")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (zip_of({"../evil.txt": b"x"}), "leads outside"),
        (zip_of({"a/../../evil.txt": b"x"}), "leads outside"),
        (zip_of({"/tmp/evil.txt": b"x"}), "leads outside"),
        (zip_of({"..\\evil.txt": b"x"}), "leads outside"),
        (linked(), "is a link"),
        (zip_of({"in.zip": zip_of({"../evil.txt": b"x"})}), "leads outside"),
        (zip_of({"a.txt": bytes(10_000)})[:-40], "cannot be unpacked"),
        (zip_of({"a.txt": b"x" * 100}).replace(b"a.txt", b"b.txt", 1), "cannot be unpacked"),
        (b"", "cannot be unpacked"),
    ],
    ids=range(9),  # not the bytes, which contain the time: the workers of a parallel test run must agree on the names
)
def test_bad_archives(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(SourceError, match=reason) as caught:
        unpacked(tmp_path, content)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("evil.txt"))


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_an_archive_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(archives, "LARGEST", 1000)
    content = zip_of({"a.txt": bytes(2000)}) if name == "a.zip" else tar_of(("a.txt", bytes(2000)))
    with pytest.raises(SourceError, match="unpacks to more than"):
        unpacked(tmp_path, content, name)


def test_names_of_archives() -> None:
    assert is_archive(Path("a.ZIP"))
    assert is_archive(Path("cifar-100-python.tar.gz"))
    assert not is_archive(Path("100.txt"))
