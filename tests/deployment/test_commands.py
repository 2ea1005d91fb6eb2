"""Commands between two processes: files that appear complete, answers, servers that are not there."""

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cabafl.deployment.server.export import export_stopped
from cabafl.deployment.server.operator import COMMANDS, LOCK, CommandBox, is_running, send_command
from cabafl.errors import UserError
from cabafl.files import lock
from cabafl.recording.folder import MODEL


@contextmanager
def server(state: Path) -> Iterator[CommandBox]:
    """Holds the lock, as a server does; it answers every command with its values."""
    state.mkdir(exist_ok=True)
    box = CommandBox(state / COMMANDS)
    end = threading.Event()

    def work() -> None:
        while not end.is_set():
            for command in box.take():
                if command.kind == "export":
                    box.attachment(command).write_bytes(b"model")
                box.answer(command, command.kind != "stop", f"{command.kind} {command.values}")
            time.sleep(0.01)

    thread = threading.Thread(target=work)
    with (state / LOCK).open("w") as file:
        lock(file, "busy")
        thread.start()
        try:
            yield box
        finally:
            end.set()
            thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cabafl.deployment.server.operator.ANSWER_TIMEOUT", 2.0)


def test_a_command_is_answered_and_leaves_nothing_behind(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with server(state):
        assert send_command(state / COMMANDS, "set", {"settings": ["a=1"]}) == "set {'settings': ['a=1']}"
        with pytest.raises(UserError, match=r"stop \{\}"):
            send_command(state / COMMANDS, "stop", {})
        send_command(state / COMMANDS, "export", {}, tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == b"model"
    assert list((state / COMMANDS).iterdir()) == []


def test_whether_a_server_runs(tmp_path: Path) -> None:
    assert not is_running(tmp_path / LOCK)
    with server(tmp_path):
        assert is_running(tmp_path / LOCK)
        assert is_running(tmp_path / LOCK)
    assert not is_running(tmp_path / LOCK)


def test_a_server_that_ends_or_hangs_is_named(tmp_path: Path) -> None:
    folder = tmp_path / COMMANDS
    with pytest.raises(UserError, match="stop: the server has ended without an answer; see its log"):
        send_command(folder, "stop", {})
    (tmp_path / LOCK).touch()
    with (tmp_path / LOCK).open() as file:
        lock(file, "busy")
        begun = time.monotonic()
        with pytest.raises(UserError, match="stop: the server has not answered for 2 s; see its log"):
            send_command(folder, "stop", {})
        assert time.monotonic() - begun < 20
    assert list(folder.iterdir()) == [], "a server that starts later must not stop because of this"


def test_an_old_command_does_not_end_a_new_run(tmp_path: Path) -> None:
    """Its operator was killed while he waited; answers and models for such operators go as well."""
    old = [tmp_path / name for name in ("1.command.json", "2.answer.json", "2.attachment")]
    for path in old:
        path.write_text(json.dumps({"kind": "stop", "values": {}}))
        os.utime(path, (time.time() - 60, time.time() - 60))
    (tmp_path / "3.command.json").write_text(json.dumps({"kind": "export", "values": {}}))
    box = CommandBox(tmp_path)
    assert [command.kind for command in box.take()] == ["export"]
    assert list(tmp_path.iterdir()) == []


def test_commands_come_in_order_once(tmp_path: Path) -> None:
    box = CommandBox(tmp_path)
    for name in ("20", "10", "30"):
        (tmp_path / f"{name}.command.json").write_text(json.dumps({"kind": name, "values": {}}))
    (tmp_path / ".40.command.json.part").write_text("half")
    assert [command.id for command in box.take()] == ["10", "20", "30"]
    assert box.take() == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": 1}', '{"kind": "stop", "values": 3}', "\xff"])
def test_a_file_that_is_no_command_is_refused(tmp_path: Path, text: str) -> None:
    box = CommandBox(tmp_path)
    (tmp_path / "1.command.json").write_text(text, encoding="latin-1")
    [command] = box.take()
    assert (command.id, command.kind) == ("1", "file that is not a command")
    assert box.take() == []


def test_without_a_folder_there_are_no_commands(tmp_path: Path) -> None:
    box = CommandBox(None)
    assert box.take() == []
    box.close()


def test_a_command_that_comes_too_late_is_refused(tmp_path: Path) -> None:
    box = CommandBox(tmp_path)
    box.take()
    (tmp_path / "1.command.json").write_text(json.dumps({"kind": "stop", "values": {}}))
    box.close()
    answer = json.loads((tmp_path / "1.answer.json").read_text())
    assert answer == {"ok": False, "text": "stop: the server has ended"}


def test_a_model_that_cannot_be_written_is_one_line_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"mo")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    state, out = tmp_path / "state", tmp_path / "out"
    out.mkdir()
    with server(state), pytest.raises(UserError, match=r"model: cannot be written: No space left on device"):
        send_command(state / COMMANDS, "export", {}, out / "model")
    assert list(out.iterdir()) == list((state / COMMANDS).iterdir()) == []
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / MODEL).write_bytes(b"model")
    with pytest.raises(UserError, match=r"model: cannot be written: No space left on device"):
        export_stopped(tmp_path / "run", out / "model")
    assert list(out.iterdir()) == []


def test_a_command_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / COMMANDS).write_text("not a folder")
    with pytest.raises(UserError, match=r"stop: .*commands: cannot be written: File exists"):
        send_command(tmp_path / COMMANDS, "stop", {})
