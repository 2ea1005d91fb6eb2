"""A file is followed while it grows, and read again if it was rewound."""

from pathlib import Path

import pytest

from cabafl.watch import tail as module
from cabafl.watch.places import Place
from cabafl.watch.tail import Rewound, Tail


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")
    return path


@pytest.fixture
def tail(file: Path) -> Tail:
    return Tail(Place(file.parent), file.name)


def read(tail: Tail) -> bytes:
    return tail.lines()[0] if tail.look() else b""


def test_lines_are_read_once_and_only_when_they_are_complete(file: Path, tail: Tail) -> None:
    assert read(tail) == b"one\ntwo\n"
    assert read(tail) == b""
    with file.open("ab") as more:
        more.write(b"thr")
    assert read(tail) == b""
    assert tail.share < 1
    with file.open("ab") as more:
        more.write(b"ee\nfour\nfi")
    assert tail.look()
    assert tail.lines() == (b"three\nfour\n", 8)
    assert tail.piece(4, 3) == b"two"


def test_a_truncated_file_is_read_again(file: Path, tail: Tail) -> None:
    read(tail)
    file.write_bytes(b"one\n")
    with pytest.raises(Rewound):
        tail.look()
    assert read(tail) == b"one\n"


def test_a_file_that_was_rewound_and_has_grown_beyond_is_read_again(file: Path, tail: Tail) -> None:
    """A resume truncates to the checkpoint and goes on: at the next look the file may be longer than before."""
    read(tail)
    with file.open("r+b") as same:
        same.truncate(4)
        same.seek(4)
        same.write(b"2nd\nthird\n")
    assert tail.look()
    with pytest.raises(Rewound):
        tail.lines()
    assert read(tail) == b"one\n2nd\nthird\n"


def test_the_same_bytes_written_again_are_not_read_again(file: Path, tail: Tail) -> None:
    read(tail)
    with file.open("r+b") as same:
        same.truncate(4)
        same.seek(4)
        same.write(b"two\nthree\n")
    assert read(tail) == b"three\n"


def test_another_file_of_the_same_name_is_read_from_its_beginning(file: Path, tail: Tail) -> None:
    read(tail)
    other = file.with_name("other")
    other.write_bytes(b"one\ntwo\nthree\n")
    other.replace(file)
    with pytest.raises(Rewound):
        tail.look()
    assert read(tail) == b"one\ntwo\nthree\n"


def test_a_deleted_file_is_an_empty_one_until_it_is_back(file: Path, tail: Tail) -> None:
    read(tail)
    file.unlink()
    with pytest.raises(Rewound):
        tail.look()
    assert not tail.look()
    assert tail.lines() == (b"", 0)
    assert tail.piece(0, 3) == b""
    file.write_bytes(b"new\n")
    assert read(tail) == b"new\n"


def test_long_lines_are_read_whole_and_endless_ones_are_skipped(
    file: Path, tail: Tail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 8)
    monkeypatch.setattr(module, "LONGEST_LINE", 100)
    file.write_bytes(b"x" * 60 + b"\n" + b"short\n")
    assert read(tail) == b"x" * 60 + b"\n" + b"short\n"
    with file.open("ab") as more:
        more.write(b"y" * 1000)
    assert read(tail) == b"\n"  # nothing of it is kept
    assert tail.position == 67 + 128
    while tail.look() and read(tail):
        pass
    with file.open("ab") as more:
        more.write(b"\nshort\n")
    assert read(tail).endswith(b"\nshort\n")
