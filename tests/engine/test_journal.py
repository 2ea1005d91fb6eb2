"""The journal on disk: round trips, torn tails and damage, what a checkpoint makes superfluous, quarantine, its end."""

import errno
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from cabafl.engine import journal as module
from cabafl.engine.inputs import Arrived, Failed, Gathered, Input, Joined, Left, Passed, Started
from cabafl.engine.journal import Journal
from cabafl.errors import RunStopped, UserError
from cabafl.recording.folder import JOURNAL
from tests.scripted import vector

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)
INPUTS: list[Input] = [
    Joined(0.0, 2, 40),
    Started(0.5),
    Arrived(1.25, 0, vector(1, 2), 0.5, 3.0, None),
    Failed(2.0, 1, "crash"),
    Gathered(3.0, ROWS, np.array([True, False, True])),
    Gathered(3.5, np.zeros((3, 0), dtype=np.float32), np.zeros(3, dtype=bool)),
    Left(float("inf"), 2),
]


def filled(run: Path, inputs: list[Input] = INPUTS, keep: bool = False) -> Journal:
    """A journal with these inputs, each committed on its own."""
    journal = Journal(run, keep)
    for given in inputs:
        journal.add(given)
        journal.commit()
    return journal


def files(run: Path) -> list[str]:
    return sorted(path.name for path in (run / JOURNAL).iterdir())


def newest(run: Path) -> Path:
    return max((run / JOURNAL).glob("*.log"))


def read(journal: Journal, first: int = 0) -> list[str]:
    """Every input with its number, types and values of its arrays included."""
    return [f"{number} {given!r}" for number, given in journal.inputs(first)]


def expected(inputs: list[Input], first: int = 0) -> list[str]:
    return [f"{first + number} {given!r}" for number, given in enumerate(inputs[first:])]


def test_inputs_come_back_as_they_were_given(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert [journal.add(given) for given in INPUTS] == [*range(7)]
    journal.commit()
    journal.close()
    again = Journal(tmp_path)
    assert again.length == 7
    assert read(again) == expected(INPUTS)
    assert read(again, 4) == expected(INPUTS, 4)
    assert read(again, 7) == []
    rows = dict(again.inputs())[4]
    assert isinstance(rows, Gathered)
    assert (rows.rows.shape, rows.rows.dtype.str, rows.answered.dtype.str) == ((3, 2), "<f4", "|b1")
    assert rows.rows.flags.aligned
    assert rows.rows.flags.writeable
    assert again.add(Passed(5.0)) == 7
    again.commit()
    assert len(read(again)) == 8
    again.close()


def test_what_is_not_committed_is_not_there(tmp_path: Path) -> None:
    journal = filled(tmp_path, INPUTS[:2])
    journal.add(INPUTS[2])
    assert (journal.length, read(journal)) == (3, expected(INPUTS[:2]))
    journal.close()
    journal.close()
    assert Journal(tmp_path).length == 2


def test_one_sync_serves_a_whole_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    for given in INPUTS:
        journal.add(given)
    journal.commit()
    journal.commit()
    assert len(synced) == 1


@pytest.mark.parametrize(("bytes_at_once", "buffers"), [(1, 1024), (7, 2), (10**9, 1), (10**9, 3)])
def test_a_batch_is_written_whole_however_little_a_call_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_at_once: int, buffers: int
) -> None:
    def writev(descriptor: int, contents: list[memoryview]) -> int:
        assert 0 < len(contents) <= buffers
        return os.write(descriptor, b"".join(contents)[:bytes_at_once])

    monkeypatch.setattr(module, "MOST_BUFFERS", buffers)
    monkeypatch.setattr("os.writev", writev)
    journal = Journal(tmp_path)
    for given in INPUTS:
        journal.add(given)
    journal.commit()
    assert newest(tmp_path).stat().st_size == journal._size
    journal.close()
    assert read(Journal(tmp_path)) == expected(INPUTS)


@pytest.mark.parametrize("rest", [b"", b"\0" * 200, b"x" * 200], ids=["cut", "zeros", "garbage"])
def test_a_torn_tail_is_cut_off_wherever_it_is_torn(tmp_path: Path, rest: bytes) -> None:
    filled(tmp_path, INPUTS[:4]).close()
    whole = newest(tmp_path).read_bytes()
    filled(tmp_path, INPUTS[4:5]).close()
    longer = newest(tmp_path).read_bytes()
    for length in range(len(whole), len(longer)):
        newest(tmp_path).write_bytes(longer[:length] + rest)
        journal = Journal(tmp_path)
        assert read(journal) == expected(INPUTS[:4])
        assert newest(tmp_path).read_bytes() == whole
        journal.close()


def test_after_a_crash_of_the_machine_a_hole_in_the_last_batch_is_a_torn_tail(tmp_path: Path) -> None:
    """The disk may have the end of an unsynced batch and not its beginning."""
    filled(tmp_path, INPUTS[:2]).close()
    whole = len(newest(tmp_path).read_bytes())
    journal = Journal(tmp_path)
    for given in INPUTS[2:]:
        journal.add(given)
    journal.commit()
    journal.close()
    content = bytearray(newest(tmp_path).read_bytes())
    content[whole + 10 : whole + 20] = bytes(10)
    newest(tmp_path).write_bytes(content)
    assert read(Journal(tmp_path)) == expected(INPUTS[:2])


def test_a_damaged_middle_is_refused_in_one_line_and_not_changed(tmp_path: Path) -> None:
    filled(tmp_path, INPUTS[:2]).close()
    start = len(newest(tmp_path).read_bytes())
    filled(tmp_path, INPUTS[2:3]).close()
    end = len(newest(tmp_path).read_bytes())
    filled(tmp_path, INPUTS[3:]).close()
    sound = newest(tmp_path).read_bytes()
    for position in range(start, end):
        content = bytearray(sound)
        content[position] ^= 64
        newest(tmp_path).write_bytes(content)
        with pytest.raises(UserError, match=r"0\.log: damaged: input 2 cannot be read, but later ones can; ") as caught:
            Journal(tmp_path)
        assert "\n" not in str(caught.value)
        assert newest(tmp_path).read_bytes() == content


def test_damage_in_an_older_file_is_found_by_the_replay_that_needs_it(tmp_path: Path) -> None:
    journal = filled(tmp_path, INPUTS[:3])
    oldest = newest(tmp_path)
    journal.cut()
    for given in INPUTS[3:]:
        journal.add(given)
    journal.commit()
    journal.close()
    content = bytearray(oldest.read_bytes())
    content[-1] ^= 1
    oldest.write_bytes(content)
    again = Journal(tmp_path)
    assert read(again, 3) == expected(INPUTS, 3)
    with pytest.raises(UserError, match=r"00000000\.log: damaged: input 2 cannot be read"):
        read(again)
    oldest.write_bytes(content[:-20])
    with pytest.raises(UserError, match="damaged: input 2 cannot be read"):
        read(again)


def test_a_missing_file_is_found(tmp_path: Path) -> None:
    journal = filled(tmp_path, INPUTS[:2])
    for given in INPUTS[2:4]:
        journal.cut()
        journal.add(given)
    journal.commit()
    journal.close()
    (tmp_path / JOURNAL / "00000002.log").unlink()
    with pytest.raises(UserError, match="damaged: input 2 is missing"):
        read(Journal(tmp_path))


def test_weights_that_look_like_a_journal_do_not_confuse_a_torn_one(tmp_path: Path) -> None:
    """A device may send the records of another journal as its weights, in the hope that the server dies over them."""
    for name in ("other", "run"):
        (tmp_path / name).mkdir()
    filled(tmp_path / "other", [Passed(float(i)) for i in range(40)]).close()
    content = newest(tmp_path / "other").read_bytes()
    weights = np.frombuffer(content[: len(content) // 4 * 4], dtype=np.float32)
    filled(tmp_path / "run", INPUTS[:2]).close()
    whole = newest(tmp_path / "run").read_bytes()
    filled(tmp_path / "run", [Arrived(1.0, 0, weights, 0.5, 3.0)]).close()
    newest(tmp_path / "run").write_bytes(newest(tmp_path / "run").read_bytes()[:-9])
    assert read(Journal(tmp_path / "run")) == expected(INPUTS[:2])
    assert newest(tmp_path / "run").read_bytes() == whole


def test_what_a_checkpoint_includes_is_deleted(tmp_path: Path) -> None:
    journal = filled(tmp_path, INPUTS[:3])
    journal.cut()
    journal.cut()
    assert files(tmp_path) == ["00000000.log", "00000003.log"]
    journal.forget(2)  # an older checkpoint
    assert len(files(tmp_path)) == 2
    journal.add(INPUTS[3])
    journal.commit()  # the journal has grown since the state was taken
    journal.forget(3)
    assert files(tmp_path) == ["00000003.log"]
    journal.forget(4)
    assert files(tmp_path) == ["00000003.log"]  # the newest says how many there were
    journal.close()
    again = Journal(tmp_path)
    assert again.length == 4
    assert read(again, 3) == expected(INPUTS[:4], 3)
    with pytest.raises(UserError, match="continues with input 2, but it has the inputs from 3 up to 4"):
        read(again, 2)
    with pytest.raises(UserError, match="continues with input 5, but"):
        read(again, 5)


def test_a_journal_to_be_kept_forgets_nothing(tmp_path: Path) -> None:
    journal = filled(tmp_path, INPUTS[:3], keep=True)
    journal.cut()
    journal.forget(3)
    assert read(journal) == expected(INPUTS[:3])


def test_a_process_that_died_while_it_began_a_file_leaves_nothing_behind(tmp_path: Path) -> None:
    filled(tmp_path, INPUTS[:3]).close()
    for start in (b"", b"cabafl", bytes(16)):
        (tmp_path / JOURNAL / "00000003.log").write_bytes(start)
        journal = Journal(tmp_path)
        assert (journal.length, read(journal)) == (3, expected(INPUTS[:3]))
        journal.close()
    assert filled(tmp_path, INPUTS[3:4]).length == 4


def test_neither_memory_nor_disk_grows_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 20_000)
    journal = Journal(tmp_path)
    weights = np.zeros(1000, dtype=np.float32)
    largest = 0
    for number in range(160):
        journal.add(Arrived(float(number), number, weights, 0.5, 3.0))
        journal.commit()
        if number % 20 == 19:
            journal.cut()
            journal.forget(journal.length)
        largest = max(largest, sum(path.stat().st_size for path in (tmp_path / JOURNAL).iterdir()))
    assert 20 * weights.nbytes < largest < 30 * weights.nbytes
    assert (journal.length, len(journal._pending), len(journal._firsts)) == (160, 0, 1)
    journal.close()
    again = Journal(tmp_path)  # the files that were not deleted yet are superfluous again with the next checkpoint
    assert len(files(tmp_path)) > 2
    again.forget(160)
    for number in range(160, 170):
        again.add(Passed(float(number)))
        again.commit()
    assert files(tmp_path) == ["00000160.log"]
    assert len(read(again, 160)) == 10


def test_opening_reads_no_array_as_a_whole(tmp_path: Path) -> None:
    weights = np.ones(4_000_000, dtype=np.float32)
    filled(tmp_path, [Arrived(1.0, 0, weights, 0.5, 3.0)]).close()
    tracemalloc.start()
    journal = Journal(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert journal.length == 1
    assert peak < weights.nbytes / 4


def test_an_input_in_quarantine_is_skipped_and_stays_counted(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    assert journal.quarantine.count == 0
    journal.quarantine.add_input(2, "ZeroDivisionError:\n division" + "!" * 1000)
    journal.quarantine.add_input(2, "again")
    journal.quarantine.add_input(5, "another")
    assert [number for number, _ in journal.inputs()] == [0, 1, 3, 4, 6]
    journal.close()
    again = Journal(tmp_path)
    assert again.quarantine.count == 2
    assert [number for number, _ in again.inputs(2)] == [3, 4, 6]
    again.cut()
    again.add(Passed(5.0))
    again.commit()
    again.forget(7)
    again.quarantine.add_input(7, "a third")
    again.close()
    last = Journal(tmp_path)
    assert (last.quarantine.count, read(last, 7)) == (3, [])
    assert b'"2"' not in (tmp_path / JOURNAL / "quarantine.json").read_bytes()
    (tmp_path / JOURNAL / "quarantine.json").write_text("[]")
    with pytest.raises(UserError, match=r"quarantine\.json: damaged"):
        Journal(tmp_path)


def test_a_full_disk_stops_the_run_and_nothing_of_the_batch_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = filled(tmp_path, INPUTS[:3])
    whole = newest(tmp_path).read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        journal.add(INPUTS[3])
        with pytest.raises(RunStopped, match="journal: the run stops because it cannot be recorded: the disk is full"):
            journal.commit()
        with pytest.raises(RunStopped, match="the disk is full"):
            journal.quarantine.add_input(1, "x")
    journal.close()
    assert newest(tmp_path).read_bytes() == whole
    assert Journal(tmp_path).length == 3


def test_the_journal_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).mkdir()
    (tmp_path / JOURNAL / "journal.jsonl").write_bytes(b"")
    with pytest.raises(UserError, match="written by an earlier version of cabafl"):
        Journal(tmp_path)
    assert files(tmp_path) == ["journal.jsonl"]


def test_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).mkdir()
    (tmp_path / JOURNAL / "00000000.log").write_bytes(b"something else entirely")
    with pytest.raises(UserError, match=r"00000000\.log: damaged: it has no head of a journal"):
        Journal(tmp_path)


@pytest.mark.parametrize("keep", [True, False])
def test_the_journal_of_a_finished_run_is_deleted_unless_it_is_to_be_kept(tmp_path: Path, keep: bool) -> None:
    journal = filled(tmp_path, [Arrived(1.0, 0, vector(1, 2), 0.5, 3.0)], keep)
    journal.discard()
    assert (tmp_path / JOURNAL).exists() == keep
