"""The journal on disk: torn lines, replay, what a checkpoint makes superfluous, and its end."""

from pathlib import Path

import numpy as np
import pytest

from cabafl.engine.inputs import Arrived, Failed, Gathered, Input, Joined, Left, Passed, Started
from cabafl.engine.journal import Journal
from cabafl.errors import UserError
from tests.scripted import vector

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def test_a_torn_line_is_cut_off_and_everything_else_is_read_back(tmp_path: Path) -> None:
    inputs: list[Input] = [
        Joined(0.0, 2, 40),
        Started(0.5),
        Arrived(1.25, 0, vector(1, 2), 0.5, 3.0, None),
        Failed(2.0, 1, "crash"),
        Gathered(3.0, ROWS, np.ones(3, dtype=bool)),
        Left(4.0, 2),
    ]
    journal = Journal(tmp_path)
    for given_input in inputs:
        journal.add(given_input)
    journal.add_sent(0, "m-1", "run 1")
    journal.add_sent(0, "m-2", "run 1")
    journal.add_sent(0, "m-3", "run 2")
    journal.close()
    with (tmp_path / "journal" / "journal.jsonl").open("ab") as file:
        file.write(b'{"number": 6, "inp')
    again = Journal(tmp_path)
    assert [*map(repr, again.inputs())] == [*map(repr, inputs)]
    assert [*map(repr, again.inputs(4))] == [*map(repr, inputs[4:])]
    assert (again.sent("run 1"), again.sent("run 2"), again.sent("run 3")) == ({0: "m-2"}, {0: "m-3"}, {})
    again.add(Passed(5.0))
    assert len([*again.inputs()]) == 7
    again.forget(4)
    assert len(list((tmp_path / "journal").glob("*.safetensors"))) == 1
    again.close()


def test_a_damaged_line_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "journal.jsonl").write_bytes(b"not json\n")
    with pytest.raises(UserError, match=r"journal.jsonl: damaged: a line is not JSON; remove the run folder"):
        Journal(tmp_path)


@pytest.mark.parametrize("keep", [True, False])
def test_the_journal_of_a_finished_run_is_deleted_unless_it_is_to_be_kept(tmp_path: Path, keep: bool) -> None:
    journal = Journal(tmp_path, keep)
    journal.add(Arrived(1.0, 0, vector(1, 2), 0.5, 3.0))
    journal.discard()
    assert (tmp_path / "journal").exists() == keep
