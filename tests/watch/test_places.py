"""Only files below the given folders can be read."""

import os
from pathlib import Path

import pytest

from cabafl.watch.places import Place


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("secret")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("text")
    return folder


def test_a_file_below_the_root_is_read(root: Path) -> None:
    place = Place(root, ("a", "b"))
    assert place.read("file") == b"text"
    assert place.read("nothing") is None
    assert place.name == "a/b"
    assert Place(root).name == "root"
    assert Place(root, ("a",)).below("b") == place
    assert place.id != Place(root).id
    assert len(place.id) == 16


def test_no_link_is_followed_on_any_step(root: Path, outside: Path) -> None:
    (root / "link").symlink_to(outside)
    (root / "a" / "b" / "file-link").symlink_to(outside / "secret")
    (root / "inside").symlink_to(root / "a")
    assert Place(root, ("link",)).read("secret") is None
    assert Place(root, ("a", "b")).read("file-link") is None
    assert Place(root, ("a", "b")).stat("file-link") is None
    assert Place(root, ("inside", "b")).read("file") is None
    assert not Place(root, ("link",)).exists()
    assert [name for name, _ in Place(root).names()] == ["a"]


def test_a_folder_that_becomes_a_link_later_is_not_followed(root: Path, outside: Path) -> None:
    place = Place(root, ("a", "b"))
    assert place.exists()
    (root / "a").rename(root / "old")
    (root / "a").symlink_to(outside.parent)
    (outside.parent / "b").mkdir()
    (outside.parent / "b" / "file").write_text("not ours")
    assert place.read("file") is None
    assert not place.exists()


def test_a_pipe_does_not_block_and_a_folder_is_no_file(root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert Place(root).read("pipe") is None
    assert Place(root).stat("pipe") is None
    assert Place(root).read("a") is None


def test_a_file_that_is_too_large_is_not_read(root: Path) -> None:
    assert Place(root, ("a", "b")).read("file", limit=4) == b"text"
    assert Place(root, ("a", "b")).read("file", limit=3) is None


def test_a_name_that_is_not_unicode_is_shown_as_text(root: Path) -> None:
    os.mkdir(os.fsencode(root) + b"/\xff<b>")  # noqa: PTH102
    [(name, folder), _] = sorted(Place(root).names(), key=lambda found: found[0] == "a")
    assert folder
    assert Place(root, (name,)).exists()
    assert Place(root, (name,)).name == "\ufffd<b>"


def test_no_descriptor_is_left_open(root: Path) -> None:
    place, before = Place(root, ("a", "b")), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(20):
        place.read("file")
        place.read("nothing")
        place.read("file", limit=1)
        place.names()
        Place(root, ("a", "gone")).read("file")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
