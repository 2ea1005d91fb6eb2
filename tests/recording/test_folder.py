"""The run folder: what is written when, and that one process at a time writes it."""

import errno
import json
from pathlib import Path

import pytest

from cabafl.errors import UserError
from cabafl.files import write_atomic
from cabafl.recording import folder as module
from cabafl.recording.events import Dispatched, Evaluated
from cabafl.recording.folder import RunFolder, read_metrics

SENT = Dispatched(1.0, 0, 3, 0, 0, 5.0)
ROW = Evaluated(2.5, 1, 0.1 + 0.2, 1.25, 4, 3, 10, 17, 680, 12.5)


def fresh(path: Path) -> RunFolder:
    return RunFolder.create(path, "seed = 1\n", {"clock": "virtual"})


def test_an_evaluation_writes_everything_before_it(tmp_path: Path) -> None:
    folder = fresh(tmp_path / "run")
    folder(SENT)
    assert (tmp_path / "run/events.jsonl").read_bytes() == b""
    folder(ROW)
    lines = (tmp_path / "run/events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["dispatch", "evaluation"]
    assert read_metrics(tmp_path / "run") == [ROW]  # the numbers are exact
    folder.close()


def test_a_finished_run_has_its_summary_and_is_closed(tmp_path: Path) -> None:
    folder = fresh(tmp_path / "run")
    folder(SENT)
    folder.finish({"seed": 1})
    assert json.loads((tmp_path / "run/summary.json").read_text()) == {"seed": 1}
    assert (tmp_path / "run/events.jsonl").read_text() == SENT.line() + "\n"
    folder.close()  # idempotent


def test_rewinding_cuts_both_files_to_the_checkpoint(tmp_path: Path) -> None:
    folder = fresh(tmp_path / "run")
    folder(ROW)
    positions = folder.positions()
    folder(SENT)
    folder(ROW._replace(time=5.0))
    folder.close()
    again = RunFolder.reopen(tmp_path / "run")
    again.rewind(positions)
    again(ROW._replace(time=7.0))
    again.close()
    assert [row.time for row in read_metrics(tmp_path / "run")] == [2.5, 7.0]
    assert (tmp_path / "run/events.jsonl").read_text().count("\n") == 2


def test_rewinding_to_the_beginning_empties_both_files(tmp_path: Path) -> None:
    folder = fresh(tmp_path / "run")
    folder(ROW)
    whole = (tmp_path / "run/metrics.csv").read_bytes()
    folder.rewind(None)
    assert (tmp_path / "run/metrics.csv").read_bytes() == b""
    assert (tmp_path / "run/events.jsonl").read_bytes() == b""
    folder(ROW)
    folder.close()
    assert (tmp_path / "run/metrics.csv").read_bytes() == whole


def test_the_averaged_model_has_columns_of_its_own(tmp_path: Path) -> None:
    rows = [
        ROW._replace(averaged_value=0.25, averaged_loss=0.1 + 0.7),
        ROW._replace(time=9.0, averaged_value=0.0),
    ]
    folder = fresh(tmp_path / "run")
    for row in rows:
        folder(row._replace(averaged_loss=0.8))
    folder.close()
    header = (tmp_path / "run/metrics.csv").read_text().splitlines()[0]
    assert header == ",".join([*ROW.columns, "averaged_accuracy", "averaged_loss"])
    assert ROW.columns[:4] == ("time", "version", "accuracy", "loss")
    assert read_metrics(tmp_path / "run") == [row._replace(averaged_loss=0.8) for row in rows]
    plain = fresh(tmp_path / "plain")
    plain(ROW)
    plain.close()
    assert "averaged" not in (tmp_path / "plain/metrics.csv").read_text()
    assert "averaged" not in (tmp_path / "plain/events.jsonl").read_text()


def test_a_record_shorter_than_its_checkpoint_is_refused_unchanged(tmp_path: Path) -> None:
    folder = fresh(tmp_path / "run")
    folder(ROW)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(UserError, match=r"metrics\.csv: shorter than when the checkpoint was taken \(9999 bytes\)"):
        folder.rewind({"events.jsonl": 3, "metrics.csv": 9999})
    folder.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_folder_in_use_or_with_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fresh(tmp_path / "run")
    with pytest.raises(UserError, match="the folder is not empty"):
        fresh(tmp_path / "run")
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    with pytest.raises(UserError, match="another process writes this run"):
        RunFolder.reopen(tmp_path / "run")
    folder.close()
    RunFolder.reopen(tmp_path / "run").close()


def test_a_folder_that_cannot_be_made_is_left_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, content: bytes) -> None:
        if path.name == "experiment.toml":
            raise OSError(errno.ENOSPC, "No space left on device")
        write_atomic(path, content)

    with monkeypatch.context() as full:
        full.setattr(module, "write_atomic", refuse)
        with pytest.raises(UserError, match="cannot be written: No space left on device"):
            fresh(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
    fresh(tmp_path / "run").close()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written: File exists"):
        fresh(tmp_path / "file")


def test_the_slower_of_two_processes_leaves_the_folder_of_the_other_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(path: Path, content: bytes) -> None:
        write_atomic(path, content)
        (path.parent / "events.jsonl").touch()  # by the other process

    monkeypatch.setattr(module, "write_atomic", late)
    with pytest.raises(UserError, match="the folder is not empty; accepted: a new or empty folder"):
        fresh(tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"environment.json", "events.jsonl"}
